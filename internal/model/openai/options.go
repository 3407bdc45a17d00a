package openai

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// DefaultBaseURL is the server of a model that names none.
const DefaultBaseURL = "https://api.openai.com/v1"

// Options configure a [Model]. Only Model is required.
type Options struct {
	// Model is the name by which the server knows the model.
	Model string
	// APIKey is sent as a bearer token; "" sends none. It never appears in an error or a log.
	APIKey string
	// BaseURL is the server, up to and without "/chat/completions"; "" means
	// [DefaultBaseURL].
	BaseURL string
	// Images says that the model takes images: those of tool results are sent behind them.
	Images bool
	// Organization is sent as OpenAI-Organization; "" sends none.
	Organization string
	// HTTPClient carries the requests; nil means a client with the default
	// transport. Its Timeout should be 0, since it would cut off long replies.
	HTTPClient *http.Client
	// Logger is told about retries, as warnings; nil discards them.
	Logger *slog.Logger

	// MaxAttempts bounds the requests for one reply; 0 means 6.
	MaxAttempts int
	// RetryDelay is the mean delay before the second attempt; it doubles with each
	// further one. 0 means 500 ms.
	RetryDelay time.Duration
	// MaxRetryDelay bounds a delay, also one that the server asks for; 0 means 60 s.
	MaxRetryDelay time.Duration
	// StartTimeout bounds the time until an answer begins; 0 means 10 min, because
	// a model may think, or be loaded, before its first word.
	StartTimeout time.Duration
	// IdleTimeout bounds the silence within an answer; 0 means 2 min.
	IdleTimeout time.Duration
}

func (o Options) withDefaults() Options {
	o.BaseURL = strings.TrimRight(o.BaseURL, "/")
	if o.BaseURL == "" {
		o.BaseURL = DefaultBaseURL
	}
	if o.HTTPClient == nil {
		o.HTTPClient = &http.Client{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 6
	}
	orDefault(&o.RetryDelay, 500*time.Millisecond)
	orDefault(&o.MaxRetryDelay, time.Minute)
	orDefault(&o.StartTimeout, 10*time.Minute)
	orDefault(&o.IdleTimeout, 2*time.Minute)
	return o
}

func orDefault(d *time.Duration, fallback time.Duration) {
	if *d == 0 {
		*d = fallback
	}
}

func (o Options) validate() error {
	var faults []error
	if o.Model == "" {
		faults = append(faults, errors.New("model: missing"))
	}
	faults = append(faults, validateBaseURL(o.BaseURL))
	if o.MaxAttempts < 0 {
		faults = append(faults, fmt.Errorf("max attempts %d: must not be negative", o.MaxAttempts))
	}
	for name, d := range map[string]time.Duration{
		"retry delay": o.RetryDelay, "max retry delay": o.MaxRetryDelay,
		"start timeout": o.StartTimeout, "idle timeout": o.IdleTimeout,
	} {
		if d < 0 {
			faults = append(faults, fmt.Errorf("%s %v: must not be negative", name, d))
		}
	}
	return errors.Join(faults...)
}

func validateBaseURL(base string) error {
	u, err := url.Parse(base)
	if err != nil {
		// The error of url.Parse would repeat the URL with its password.
		return errors.New("base URL: is not a URL; want something like http://localhost:11434/v1")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("base URL %q: must start with http:// or https:// and name a host, like http://localhost:11434/v1", u.Redacted())
	case u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("base URL %q: must have neither a query nor a fragment", u.Redacted())
	case strings.HasSuffix(u.Path, "/chat/completions"):
		return fmt.Errorf("base URL %q: must end before /chat/completions", u.Redacted())
	}
	return nil
}

// shownURL is the base URL as errors show it: without its password.
func shownURL(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return "an invalid URL"
	}
	return u.Redacted()
}
