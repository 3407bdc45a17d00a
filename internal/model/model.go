// Package model opens models by name.
//
// A spec is "provider:name", as given on a command line:
//
//	script:FILE     replies from a script, see package scripted
//	replay:FILE     plays back a session of session export, see [loop.Recording]
//	openai:NAME     the model NAME of OpenAI, or of any compatible server, see package openai
//	anthropic:NAME  one of Anthropic, see package anthropic
//	google:NAME     one of Google (Gemini), see package google
//
// Providers read their settings from the environment, under the names that their own tools use, as
// OPENAI_API_KEY and OPENAI_BASE_URL. A key is required for a provider's own server; others may do
// without.
package model

import (
	"bytes"
	"cmp"
	_ "embed" // the prices of this version
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/model/anthropic"
	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/google"
	"github.com/toolfleet/toolfleet/internal/model/openai"
	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// ErrInvalidSpec is wrapped by every error about a spec that names no model.
var ErrInvalidSpec = errors.New("invalid model")

// ErrNoAPIKey says that the provider needs a key and the environment has none.
var ErrNoAPIKey = errors.New("no API key is set")

// provider is a provider of models.
type provider struct {
	name, title      string
	keys             []string // the variables with its API key; the first that is set counts
	base, defaultURL string   // the variable with the base URL, and the provider's own server
	example          string   // another server
	open             func(o Opener, name string, opts endpoint.Options) (loop.Model, error)
}

func providers() []provider {
	return []provider{
		{
			"openai", "OpenAI",
			[]string{"OPENAI_API_KEY"},
			"OPENAI_BASE_URL", openai.DefaultBaseURL, "http://localhost:11434/v1",
			Opener.openAI,
		},
		{
			"anthropic", "Anthropic",
			[]string{"ANTHROPIC_API_KEY"},
			"ANTHROPIC_BASE_URL", anthropic.DefaultBaseURL, "http://localhost:4000",
			func(_ Opener, _ string, opts endpoint.Options) (loop.Model, error) { return anthropic.New(opts) },
		},
		{
			"google", "Google",
			[]string{"GEMINI_API_KEY", "GOOGLE_API_KEY"},
			"GOOGLE_GEMINI_BASE_URL", google.DefaultBaseURL, "http://localhost:4000",
			func(_ Opener, _ string, opts endpoint.Options) (loop.Model, error) { return google.New(opts) },
		},
	}
}

// CheckLane returns an error about the lane of a limit that is for a provider of models which does
// not exist, with the nearest one.
func CheckLane(lane string) error {
	var names []string
	for _, p := range providers() {
		names = append(names, p.name)
	}
	name, is := strings.CutPrefix(lane, limits.ModelLanes)
	if !is || strings.Contains(name, "*") || slices.Contains(names, name) {
		return nil
	}
	hint := ""
	if near, ok := prose.Nearest(name, names); ok {
		hint = fmt.Sprintf("; did you mean %q?", limits.ModelLanes+near)
	}
	return fmt.Errorf("lane %q: there is no such provider of models: must be one of %s%s", lane, strings.Join(names, ", "), hint)
}

// allowedForms ends the errors about specs.
func allowedForms() string {
	forms := []string{"script:FILE (replies from a JSON script)", "replay:FILE (plays back what session export printed)"}
	for _, p := range providers() {
		forms = append(forms, fmt.Sprintf("%s:NAME (%s, or the server of %s)", p.name, p.title, p.base))
	}
	return "allowed are " + strings.Join(forms[:len(forms)-1], ", ") + " and " + forms[len(forms)-1]
}

// Opener opens models. Its zero value does so with an empty environment.
type Opener struct {
	// Env looks up an environment variable, like os.Getenv; nil finds none.
	Env func(name string) string
	// HTTPClient carries requests to providers; nil means the default transport.
	HTTPClient *http.Client
	// Logger gets a warning about each retry; nil discards them.
	Logger *slog.Logger
	// MaxWait is [endpoint.Options].MaxWait.
	MaxWait time.Duration
	// Meter makes the metrics of replies; nil is what the process has installed.
	Meter metric.Meter
	// Gate has the models wait for the limits of their providers; nil does not.
	Gate *Gate
}

// Open opens a model with the settings of an environment and the defaults for all else.
// It returns the model and its name, like [Opener.Open].
func Open(spec string, env func(name string) string) (loop.Model, string, error) {
	return Opener{Env: env}.Open(spec)
}

// Open opens a model and returns it with the name to show for it: the spec in its canonical form.
// It connects to nothing. Errors say what is allowed; they wrap [ErrInvalidSpec], [ErrNoAPIKey], or
// an error of the script or the settings.
func (o Opener) Open(spec string) (loop.Model, string, error) {
	kind, name, _ := strings.Cut(strings.TrimSpace(spec), ":")
	name = strings.TrimSpace(name)
	display := kind + ":" + name
	known := slices.IndexFunc(providers(), func(p provider) bool { return p.name == kind })
	switch {
	case strings.TrimSpace(spec) == "":
		return nil, "", fmt.Errorf("%w: none was given; %s", ErrInvalidSpec, allowedForms())
	case kind != "script" && kind != "replay" && known < 0:
		return nil, "", fmt.Errorf("%w %q: unknown provider %q; %s", ErrInvalidSpec, spec, kind, allowedForms())
	case name == "":
		return nil, "", fmt.Errorf("%w %q: the name of the model or file is missing; %s", ErrInvalidSpec, spec, allowedForms())
	}
	var m loop.Model
	var err error
	switch kind {
	case "script":
		m, err = scripted.Load(name)
	case "replay":
		m, err = loadRecording(name)
	default:
		m, err = o.of(providers()[known], name)
	}
	if err != nil {
		return nil, "", fmt.Errorf("model %s: %w", display, err)
	}
	return o.Measure(m, kind, display), display, nil
}

// Measure has a model wait for the limits of its provider, and its replies counted.
func (o Opener) Measure(m loop.Model, provider, name string) loop.Model {
	metrics := telemetry.NewModelMetrics(cmp.Or(o.Meter, telemetry.Meter()), provider, name)
	return measured{Model: m, provider: provider, gate: o.Gate, metrics: metrics}
}

func loadRecording(path string) (*loop.Recording, error) {
	file, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	events, err := loop.ReadExport(file)
	if err != nil {
		return nil, err
	}
	return loop.History{Events: events}.Recording()
}

// RecordingOf returns the recording of a model replay:FILE; nil for other models.
func RecordingOf(m loop.Model) *loop.Recording {
	opened, _ := m.(measured) // which every model of an Opener is
	recording, _ := opened.Model.(*loop.Recording)
	return recording
}

// of opens a model of a provider.
func (o Opener) of(p provider, name string) (loop.Model, error) {
	opts := endpoint.Options{Model: name, BaseURL: strings.TrimRight(o.env(p.base), "/"), HTTPClient: o.HTTPClient, Logger: o.Logger, MaxWait: o.MaxWait}
	for _, key := range p.keys {
		opts.APIKey = cmp.Or(opts.APIKey, o.env(key))
	}
	if opts.APIKey == "" && (opts.BaseURL == "" || opts.BaseURL == p.defaultURL) {
		return nil, fmt.Errorf("%w: set %s to a key of %s, or set %s to another server, like %s",
			ErrNoAPIKey, p.keys[0], p.title, p.base, p.example)
	}
	m, err := p.open(o, name, opts)
	if _, bad := errors.AsType[*settingError](err); err != nil && !bad { // the name is known to be there
		return nil, fmt.Errorf("%s: %w", p.base, err)
	}
	return m, err
}

func (o Opener) openAI(name string, opts endpoint.Options) (loop.Model, error) {
	images, err := takesImages(name, o.env("OPENAI_IMAGES"))
	if err != nil {
		return nil, err
	}
	api := cmp.Or(o.env("OPENAI_API"), openai.Auto)
	if !slices.Contains([]string{openai.Auto, openai.Responses, openai.Chat}, api) {
		return nil, &settingError{"OPENAI_API", api, "auto, responses or chat"}
	}
	return openai.New(openai.Options{Options: opts, API: api, Organization: o.env("OPENAI_ORG_ID"), Images: images})
}

// settingError is an error of a setting that its text names.
type settingError struct{ name, value, allowed string }

func (e *settingError) Error() string {
	return fmt.Sprintf("%s %q: must be %s", e.name, e.value, e.allowed)
}

// takesImages reports whether a model is sent images: when the setting says so, and
// without a setting when its name belongs to a family that is known to take them.
func takesImages(name, setting string) (bool, error) {
	if setting != "" {
		wanted, err := strconv.ParseBool(setting)
		if err != nil {
			return false, &settingError{"OPENAI_IMAGES", setting, "true or false"}
		}
		return wanted, nil
	}
	known := slices.ContainsFunc([]string{"gpt-4o", "gpt-4.1", "gpt-5"}, func(family string) bool {
		return strings.HasPrefix(name, family)
	})
	return known, nil
}

func (o Opener) env(name string) string {
	if o.Env == nil {
		return ""
	}
	return strings.TrimSpace(o.Env(name))
}

//go:embed prices.json
var prices []byte

// Prices are the prices and windows of models, by name, as of a day.
type Prices struct {
	AsOf    string          `json:"as_of"`
	Unit    string          `json:"unit"`
	Sources []string        `json:"sources"`
	Models  map[string]Info `json:"models"`
	// Tools are dollars for each call of the tools that providers run, by PROVIDER:TOOL, at most:
	// some are billed by time or size. Without them, the prices of this version apply.
	Tools map[string]float64 `json:"tools"`
}

// Info is what is known of a model. A missing price is unknown, as is a Window of 0.
type Info struct {
	Input  *float64 `json:"input"`
	Output *float64 `json:"output"`
	// Window is how many tokens a conversation may have.
	Window int64 `json:"window"`
}

// maxPrices bounds the size of a file of prices, in bytes.
const maxPrices = 4 << 20

// LoadPrices reads a file of prices, or the prices of this version if path is "".
func LoadPrices(path string) (*Prices, error) {
	content := prices
	if path != "" {
		var err error
		if content, err = regular.Read(path, maxPrices); err != nil {
			return nil, errors.Unwrap(err)
		}
	}
	var p Prices
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return nil, fmt.Errorf("must be an object with as_of and models: %w", err)
	}
	if p.Tools == nil && path != "" {
		built, err := LoadPrices("")
		if err != nil {
			return nil, err
		}
		p.Tools = built.Tools
	}
	return &p, p.validate()
}

func (p *Prices) validate() error {
	var errs []error
	if _, err := time.Parse(time.DateOnly, p.AsOf); err != nil {
		errs = append(errs, fmt.Errorf("as_of %q: must be a day such as 2026-12-31", p.AsOf))
	}
	if len(p.Models) == 0 {
		errs = append(errs, errors.New("models: missing"))
	}
	for name, m := range p.Models {
		bad := func(price *float64) bool { return price != nil && (*price < 0 || math.IsInf(*price, 1)) }
		if bad(m.Input) || bad(m.Output) || (m.Input == nil) != (m.Output == nil) {
			errs = append(errs, fmt.Errorf("models: %s: input and output must both be dollars per million tokens, or both be missing", name))
		}
		if m.Window < 0 {
			errs = append(errs, fmt.Errorf("models: %s: window %d: must not be negative", name, m.Window))
		}
	}
	for name, price := range p.Tools {
		if !(price >= 0) || math.IsInf(price, 1) {
			errs = append(errs, fmt.Errorf("tools: %s: must be dollars for each call", name))
		}
	}
	return errors.Join(errs...)
}

// ToolsOf are the prices of the tools that the provider of a model runs.
func (p *Prices) ToolsOf(name string) map[string]float64 {
	provider, _, _ := strings.Cut(name, ":")
	tools := map[string]float64{}
	for name, price := range p.Tools {
		if of, tool, _ := strings.Cut(name, ":"); of == provider {
			tools[tool] = price
		}
	}
	return tools
}

// dated is the end of a model's name that pins a day.
var dated = regexp.MustCompile(`-(20\d{6}|20\d\d-\d\d-\d\d)$`)

// Of returns what is known of the model that [Opener.Open] names so, or of the one of that name
// without a day.
func (p *Prices) Of(name string) (price *loop.Price, window int64) {
	m, known := p.Models[name]
	if !known {
		m = p.Models[dated.ReplaceAllString(name, "")]
	}
	if m.Input != nil && m.Output != nil {
		price = &loop.Price{Input: *m.Input, Output: *m.Output, Tools: p.ToolsOf(name)}
	}
	return price, m.Window
}
