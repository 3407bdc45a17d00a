package model

import (
	"bytes"
	_ "embed" // the prices of this version
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/regular"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

//go:embed prices.json
var prices []byte

// Prices are the prices and windows of models, by name, as of a day.
type Prices struct {
	AsOf    string          `json:"as_of"`
	Unit    string          `json:"unit"`
	Sources []string        `json:"sources"`
	Models  map[string]Info `json:"models"`
	// Tools are dollars for each call of the tools that providers run, by PROVIDER:TOOL, at most:
	// some are billed by time or size. A file without them has those of this version.
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

// LoadPrices reads a file of prices, and those of this version if path is "".
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
