// Package model opens models by name.
//
// A spec is "provider:name", as given on a command line:
//
//	script:FILE   replies from a script, see package scripted
//	openai:NAME   the model NAME of OpenAI, or of any compatible server, see package openai
//
// The openai provider reads its settings from the environment, under the names that OpenAI's own
// tools use: OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_ORG_ID. A key is required for
// OpenAI itself; other servers may do without.
package model

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/toolfleet/toolfleet/internal/model/openai"
	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// ErrInvalidSpec is wrapped by every error about a spec that names no model.
var ErrInvalidSpec = errors.New("invalid model")

// ErrNoAPIKey says that the provider needs a key and the environment has none.
var ErrNoAPIKey = errors.New("OPENAI_API_KEY is not set")

const allowedForms = "allowed are script:FILE (replies from a JSON script) and openai:NAME (OpenAI, or the compatible server of OPENAI_BASE_URL)"

// Opener opens models. Its zero value does so with an empty environment.
type Opener struct {
	// Env looks up an environment variable, like os.Getenv; nil finds none.
	Env func(name string) string
	// HTTPClient carries requests to providers; nil means the default transport.
	HTTPClient *http.Client
	// Logger is told about retries; nil discards them.
	Logger *slog.Logger
	// Meter makes the metrics of replies; nil is what the process has installed.
	Meter metric.Meter
}

// Open opens a model with the settings of an environment and the defaults for all else.
// It returns the model and its name, like [Opener.Open].
func Open(spec string, env func(name string) string) (loop.Model, string, error) {
	return Opener{Env: env}.Open(spec)
}

// Open opens a model and returns it with the name to show for it: the spec in its canonical form.
// It connects to nothing. Errors say what can be given instead; they wrap [ErrInvalidSpec],
// [ErrNoAPIKey], or what is wrong with the script or the settings.
func (o Opener) Open(spec string) (loop.Model, string, error) {
	provider, name, _ := strings.Cut(strings.TrimSpace(spec), ":")
	name = strings.TrimSpace(name)
	display := provider + ":" + name
	switch {
	case strings.TrimSpace(spec) == "":
		return nil, "", fmt.Errorf("%w: none was given; %s", ErrInvalidSpec, allowedForms)
	case provider != "script" && provider != "openai":
		return nil, "", fmt.Errorf("%w %q: unknown provider %q; %s", ErrInvalidSpec, spec, provider, allowedForms)
	case name == "":
		return nil, "", fmt.Errorf("%w %q: nothing behind the colon; %s", ErrInvalidSpec, spec, allowedForms)
	}
	var m loop.Model
	var err error
	if provider == "script" {
		m, err = scripted.Load(name)
	} else {
		m, err = o.openAI(name)
	}
	if err != nil {
		return nil, "", fmt.Errorf("model %s: %w", display, err)
	}
	meter := o.Meter
	if meter == nil {
		meter = telemetry.Meter()
	}
	return measured{Model: m, metrics: telemetry.NewModelMetrics(meter, provider, display)}, display, nil
}

func (o Opener) openAI(name string) (*openai.Model, error) {
	images, err := takesImages(name, o.env("OPENAI_IMAGES"))
	if err != nil {
		return nil, err
	}
	opts := openai.Options{
		Model:        name,
		APIKey:       o.env("OPENAI_API_KEY"),
		BaseURL:      strings.TrimRight(o.env("OPENAI_BASE_URL"), "/"),
		Organization: o.env("OPENAI_ORG_ID"),
		Images:       images,
		HTTPClient:   o.HTTPClient,
		Logger:       o.Logger,
	}
	if opts.APIKey == "" && (opts.BaseURL == "" || opts.BaseURL == openai.DefaultBaseURL) {
		return nil, fmt.Errorf("%w: set it to a key of OpenAI, or set OPENAI_BASE_URL to another server, like http://localhost:11434/v1", ErrNoAPIKey)
	}
	m, err := openai.New(opts)
	if err != nil { // the name is known to be there
		return nil, fmt.Errorf("OPENAI_BASE_URL: %w", err)
	}
	return m, nil
}

// takesImages reports whether a model is sent images: when the setting says so, and
// without one when its name is that of a family that is known to take them.
func takesImages(name, setting string) (bool, error) {
	if setting != "" {
		wanted, err := strconv.ParseBool(setting)
		if err != nil {
			return false, fmt.Errorf("OPENAI_IMAGES %q: must be true or false", setting)
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

// measured is a model whose replies are in the metrics.
type measured struct {
	loop.Model

	metrics *telemetry.ModelMetrics
}

var _ loop.Provider = measured{}

// Reply implements [loop.Model].
func (m measured) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	begun := time.Now()
	reply, err := m.Model.Reply(ctx, req, delta)
	m.metrics.Replied(ctx, time.Since(begun), reply.Usage.InputTokens, reply.Usage.OutputTokens, err)
	return reply, err
}

// Provider implements [loop.Provider] with what the model says; "" when it says nothing.
func (m measured) Provider() string {
	if provider, is := m.Model.(loop.Provider); is {
		return provider.Provider()
	}
	return ""
}
