package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/fault"
)

var goodName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

const (
	// separator is between the names of server and tool.
	separator = "__"
	// sandboxKey is the session's sandbox, in a template of a resource.
	sandboxKey = "sandbox/{$sandbox}"
)

// Prefix is what the names of the server's tools begin with.
func (s *Server) Prefix() string { return s.Name + separator }

// inPointer is a JSON pointer to a property of what another one points to.
func inPointer(pointer, name string) string {
	return pointer + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// checker collects what is wrong with a server.
type checker struct{ errs []error }

func (c *checker) failure(at, format string, args ...any) {
	c.errs = append(c.errs, fault.Fault{At: at, Message: fmt.Sprintf(format, args...)})
}

// Validate reports everything that can be seen to be wrong before the server is asked, joined.
func (s *Server) Validate() error { return errors.Join(s.faults()...) }

func (s *Server) faults() []error {
	c := &checker{}
	c.origin(s.MCPServer)
	c.oauth(s)
	c.remote("/pool", "", tools.Remote{Pool: s.Pool})
	c.remote("/min_level", "", tools.Remote{MinLevel: s.MinLevel})
	c.timeout("", "", s.Timeout)
	if s.Only != nil && len(s.Only) == 0 {
		c.failure("/only", "only: must name a tool; without it all are offered")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		c.rule(inPointer("/tools", name), "tool "+name+": ", s.Tools[name])
	}
	return c.errs
}

// origin checks where the server is.
func (c *checker) origin(s protocol.MCPServer) {
	if !goodName.MatchString(s.Name) || strings.Contains(s.Name, separator) {
		c.failure("/name", "name %q: must be 1 to 40 of a-z, A-Z, 0-9, '_' and '-', without %q", s.Name, separator)
	}
	if (s.Command == "") == (s.URL == "") {
		c.failure("/url", "exactly one of command (a program) and url must be given")
	}
	if s.URL != "" && !strings.HasPrefix(s.URL, "https://") && !strings.HasPrefix(s.URL, "http://") && !strings.HasPrefix(s.URL, "${") {
		c.failure("/url", "url %q: must begin with http:// or https://", beginning(s.URL))
	}
	if s.URL != "" && len(s.Args)+len(s.Env)+len(s.Cwd) > 0 {
		c.failure("/url", "args, env and cwd are of programs, not of a url")
	}
	if s.URL == "" && len(s.Headers) > 0 {
		c.failure("/headers", "headers are of a url, not of a program")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(s.Env[name], "\x00") {
			c.failure(inPointer("/env", name), "env %q: a name must not be empty or contain \"=\", and nothing may contain a NUL byte", name)
		}
	}
}

// beginning is as much of a URL as shows what it begins with: the rest may have secrets.
func beginning(url string) string {
	if scheme, _, is := strings.Cut(url, "://"); is {
		return scheme + "://..."
	}
	if i := strings.IndexAny(url, ":/?#@"); i >= 0 {
		return url[:i] + "..."
	}
	return url
}

// rule checks the settings of a tool.
func (c *checker) rule(at, of string, r Rule) {
	c.remote(at+"/delivery", of, tools.Remote{Delivery: r.Delivery})
	c.timeout(at, of, r.Timeout)
	if r.Revert != nil {
		if r.Revert.Tool == "" {
			c.failure(at+"/revert", "%srevert: tool: missing", of)
		}
		if _, err := json.Marshal(r.Revert.Arguments); err != nil { // keys that are no texts
			c.failure(at+"/revert/arguments", "%srevert: arguments: must be a JSON object: %v", of, err)
		}
	}
	for i, resource := range r.Resources {
		at := fmt.Sprintf("%s/resources/%d", at, i)
		if !strings.HasPrefix(resource.Key+"/", sandboxKey+"/") {
			c.failure(at, "%sresource %q: a server lives in the sandbox of its session: the key must begin with %s", of, resource.Key, sandboxKey)
			continue
		}
		c.remote(at, of, tools.Remote{Resources: []tools.Resource{resource}})
	}
}

// remote checks one field of how calls run.
func (c *checker) remote(at, of string, r tools.Remote) {
	if err := r.Validate(); err != nil {
		c.failure(at, "%s%v", of, err)
	}
}

func (c *checker) timeout(at, of, text string) {
	if text == "" {
		return
	}
	parsed, err := time.ParseDuration(text)
	if err != nil || parsed <= 0 {
		c.failure(at+"/timeout", "%stimeout %q: must be a time such as 90s or 2m", of, text)
		return
	}
	c.remote(at+"/timeout", of, tools.Remote{Timeout: parsed})
}
