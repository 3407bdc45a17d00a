package mcp

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	// Scopes are asked for; none are those that the server names.
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
