// Package mcp makes tools of the servers of the Model Context Protocol that a file names, in the
// format that agents share:
//
//	{"mcpServers": {"fs": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."]}}}
//
// [Parse] reads it. A fleet asks the servers for their tools, which have names as server__tool, and
// the resources and the delivery that the file gives them, or else the server's hints. Package
// manifest reads a server from a file of its own.
package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// maxBytes bounds a file.
const maxBytes = 1 << 20

// Server is a server, and how its tools are used. Its JSON has what a file has in the property
// "toolfleet" of a server, which other agents pass over.
type Server struct {
	protocol.MCPServer `json:"-"`

	// OAuth is how one logs in to a URL; nil leaves all to the server. A client that logs in by
	// itself is [protocol.MCPServer].Client, too: see [Server.SetOAuth].
	OAuth *OAuth `json:"-"`

	// Workspace says whether the tools touch the workspace. Default: tools of programs do, and are
	// ordered with files and commands; tools of URLs do not, and run concurrently with them.
	Workspace *bool `json:"workspace,omitempty"`
	// Only are the tools that are offered, by the server's names; nil offers all.
	Only []string `json:"only,omitempty"`
	// Tools are settings of single tools, by the server's names.
	Tools map[string]Rule `json:"tools,omitempty"`
	// Timeout bounds a call, as in "90s"; "" is the default of calls.
	Timeout string `json:"timeout,omitempty"`
	// Pool and MinLevel are as in [tools.Remote].
	Pool     protocol.Pool `json:"pool,omitempty"`
	MinLevel string        `json:"min_level,omitempty"`
}

// Rule is how one tool is used.
type Rule struct {
	// Resources are what a call touches; nil means what the server's hints say. Keys in another
	// lane than the session's sandbox order calls of all sessions: each such call starts the server
	// in an empty sandbox.
	Resources []tools.Resource `json:"resources,omitempty" yaml:"resources"`
	// Delivery is as in [tools.Remote]; "" follows the hints of the server.
	Delivery protocol.Delivery `json:"delivery,omitempty" yaml:"delivery"`
	// Timeout is the time limit of this tool, as in [Server].
	Timeout string `json:"timeout,omitempty" yaml:"timeout"`
	// Revert undoes the effect of a call; nil means that nothing does.
	Revert *Revert `json:"revert,omitempty" yaml:"revert"`
}

// Revert is a [tools.Revert] in a file.
type Revert struct {
	// Tool is another tool of the server, by the server's name, or else a tool of the session.
	Tool      string         `json:"tool" yaml:"tool"`
	Arguments map[string]any `json:"arguments" yaml:"arguments"`
}

// entry is a server in a file. What other agents have there beside it is passed over.
type entry struct {
	Type     string            `json:"type"`
	Command  string            `json:"command"`
	Args     []string          `json:"args"`
	Env      map[string]string `json:"env"`
	Cwd      string            `json:"cwd"`
	URL      string            `json:"url"`
	Headers  map[string]string `json:"headers"`
	OAuth    *OAuth            `json:"oauth"`
	Disabled bool              `json:"disabled"`
	Settings json.RawMessage   `json:"toolfleet"`
}

// Parse reads a file. It returns the servers by name, without disabled ones, and
// everything that is wrong.
func Parse(content []byte) ([]Server, []error) {
	var file struct {
		Servers map[string]json.RawMessage `json:"mcpServers"` //nolint:tagliatelle // as agents have it
	}
	if len(content) > maxBytes {
		return nil, []error{fmt.Errorf("has %d bytes, at most %d are allowed", len(content), maxBytes)}
	}
	if err := json.Unmarshal(content, &file); err != nil {
		return nil, []error{fmt.Errorf(`must be JSON as {"mcpServers": {NAME: {"command": ...}}}: %w`, err)}
	}
	if file.Servers == nil {
		return nil, []error{errors.New(`"mcpServers": missing`)}
	}
	var servers []Server
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(file.Servers)) {
		server, disabled, wrong := parseServer(name, file.Servers[name])
		for _, err := range wrong {
			errs = append(errs, fmt.Errorf("server %q: %w", name, err))
		}
		if len(wrong) == 0 && !disabled {
			servers = append(servers, server)
		}
	}
	return servers, errs
}

func parseServer(name string, content json.RawMessage) (s Server, disabled bool, errs []error) {
	var e entry
	if err := json.Unmarshal(content, &e); err != nil {
		return s, false, []error{err}
	}
	if e.Settings != nil {
		decoder := json.NewDecoder(bytes.NewReader(e.Settings))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&s); err != nil {
			errs = append(errs, fmt.Errorf("toolfleet: %w", err))
		}
	}
	switch e.Type {
	case "", "stdio", "http", "streamable-http", "streamableHttp":
	default:
		errs = append(errs, fmt.Errorf("type %q: must be stdio or http", e.Type))
	}
	s.MCPServer = protocol.MCPServer{Name: name, Command: e.Command, Args: e.Args, Env: e.Env, Cwd: e.Cwd, URL: e.URL, Headers: e.Headers}
	s.SetOAuth(e.OAuth)
	return s, e.Disabled, append(errs, s.check()...)
}

var goodName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// separator is between the names of server and tool.
const separator = "__"

// Prefix is what the names of the server's tools begin with.
func (s *Server) Prefix() string { return s.Name + separator }

// inPointer is a JSON pointer to a property of what another one points to.
func inPointer(pointer, name string) string {
	return pointer + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// RuleOf is how a tool is used: as the file says, or else as the server says in the _meta
// "toolfleet/tool" of its definition, which is a [Rule], or nil.
func (s *Server) RuleOf(tool string, said json.RawMessage) (Rule, error) {
	rule := s.Tools[tool]
	if said == nil {
		return rule, nil
	}
	var own Rule
	decoder := json.NewDecoder(bytes.NewReader(said))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&own); err != nil {
		return rule, fmt.Errorf("what the server says of it: %w", err)
	}
	c := &checker{}
	c.rule("", "what the server says of it: ", own)
	if rule.Resources == nil {
		rule.Resources = own.Resources
	}
	rule.Delivery, rule.Timeout, rule.Revert = cmp.Or(rule.Delivery, own.Delivery), cmp.Or(rule.Timeout, own.Timeout), cmp.Or(rule.Revert, own.Revert)
	return rule, errors.Join(c.errs...)
}

// checker collects the errors of a server.
type checker struct{ errs []error }

func (c *checker) failure(at, format string, args ...any) {
	c.errs = append(c.errs, yamlfile.FieldError{At: at, Message: fmt.Sprintf(format, args...)})
}

// Validate reports everything that can be seen to be wrong before the server is asked, joined.
func (s *Server) Validate() error { return errors.Join(s.check()...) }

func (s *Server) check() []error {
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

// Values of [OAuth].GrantType.
const (
	// grantCode is a login of a person, with a browser.
	grantCode = "authorization_code"
	// grantClient is a client that logs in by itself.
	grantClient = "client_credentials"
)

// OAuth is how one logs in to a server (OAuth 2.1), in the words of agents' files.
type OAuth struct {
	// GrantType is "authorization_code" (also ""), a person's login with a browser, or
	// "client_credentials", a client that logs in by itself.
	GrantType string `json:"grantType" yaml:"grantType"` //nolint:tagliatelle // as agents have it
	// ClientID is a client that the authorization server knows, or the https:// URL of a document
	// about one. Without it a person's login registers one.
	ClientID     string `json:"clientId"     yaml:"clientId"`     //nolint:tagliatelle // as above
	ClientSecret string `json:"clientSecret" yaml:"clientSecret"` //nolint:tagliatelle // as above
	// Scopes are requested; none requests the scopes that the server names.
	Scopes []string `json:"scopes" yaml:"scopes"`
	// CallbackPort is where a person's browser comes back to, for authorization servers that know
	// the address beforehand; 0 is any.
	CallbackPort int `json:"callbackPort" yaml:"callbackPort"` //nolint:tagliatelle // as above
}

// UnmarshalJSON implements [json.Unmarshaler]. In a file, scopes are a list, or one text with
// spaces.
func (o *OAuth) UnmarshalJSON(data []byte) error {
	type plain OAuth
	file := struct {
		*plain

		Scopes json.RawMessage `json:"scopes"`
	}{plain: (*plain)(o)}
	var text string
	switch err := json.Unmarshal(data, &file); {
	case err != nil || file.Scopes == nil:
		return err
	case json.Unmarshal(file.Scopes, &text) == nil:
		o.Scopes = strings.Fields(text)
		return nil
	}
	return json.Unmarshal(file.Scopes, &o.Scopes)
}

// SetOAuth sets OAuth and, for a client that logs in by itself, [protocol.MCPServer].Client.
func (s *Server) SetOAuth(o *OAuth) {
	s.OAuth, s.Client = o, nil
	if o != nil && o.GrantType == grantClient {
		s.Client = &protocol.MCPClient{ID: o.ClientID, Secret: o.ClientSecret, Scopes: o.Scopes}
	}
}

var (
	// goodScope is what RFC 6749 allows.
	goodScope = regexp.MustCompile(`^[\x21\x23-\x5B\x5D-\x7E]+$`)
	variable  = regexp.MustCompile(`^\$\{[A-Za-z_][A-Za-z0-9_]*\}$`)
)

// oauth checks how one logs in.
func (c *checker) oauth(s *Server) {
	o := s.OAuth
	if o == nil {
		return
	}
	if s.URL == "" {
		c.failure("/oauth", "oauth is of a url, not of a program")
	}
	for name := range s.Headers {
		if strings.EqualFold(name, "Authorization") {
			c.failure("/oauth", "oauth and the header %s: only one of them can say who comes", name)
		}
	}
	if i := slices.IndexFunc(o.Scopes, func(scope string) bool { return !goodScope.MatchString(scope) }); i >= 0 {
		c.failure("/oauth/scopes", `oauth: scope %q: must be of printable ASCII without spaces, '"' and '\'`, o.Scopes[i])
	}
	switch o.GrantType {
	case "", grantCode:
		if o.ClientSecret != "" && o.ClientID == "" {
			c.failure("/oauth/clientSecret", "oauth: clientSecret without clientId")
		}
		if o.CallbackPort < 0 || o.CallbackPort > 65535 {
			c.failure("/oauth/callbackPort", "oauth: callbackPort %d: must be 1 to 65535", o.CallbackPort)
		}
	case grantClient:
		if o.ClientID == "" {
			c.failure("/oauth/clientId", "oauth: clientId is missing, which %s needs", grantClient)
		}
		if !variable.MatchString(o.ClientSecret) {
			c.failure("/oauth/clientSecret", "oauth: clientSecret must be a variable of the worker, as ${NAME}: what is written out would travel")
		}
		if o.CallbackPort != 0 {
			c.failure("/oauth/callbackPort", "oauth: callbackPort is of %s", grantCode)
		}
	default:
		c.failure("/oauth/grantType", "oauth: grantType %q: must be %s (a person logs in) or %s", o.GrantType, grantCode, grantClient)
	}
}
