package protocol

import (
	"encoding/json"
	"fmt"
)

// Kind names a payload and the typed value that answers it; both use one name. Kinds of your own
// have 1 to 64 lower-case letters, digits and '_', and are not those of built-in payloads.
type Kind string

// Payload is what a worker executes: a payload type of this package, as a value, or an
// [UnknownPayload]. Tools and sessions also send payloads that only toolfleet itself makes. Paths
// in payloads are slash-separated and relative to the workspace; "" is the workspace itself.
type Payload any

// InstructionFile is a file with instructions for agents, such as AGENTS.md.
type InstructionFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// UnknownPayload is a payload of a kind that is not built in, such as that of a handler. It keeps
// the bytes that it came with. A worker without a handler of that kind answers with status
// "rejected".
type UnknownPayload struct {
	Name Kind
	Raw  json.RawMessage
}

// Author is who commits with git in the commands of a session; what is "" is not said.
type Author struct {
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
}

// Value answers a payload: the type with the payload's name and "Result", as a value, or an
// [UnknownValue].
type Value any

// Usage counts what a model was asked and answered.
type Usage struct {
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// CachedTokens are those of InputTokens that the provider read from its cache, CacheWriteTokens
	// those that it wrote to its cache at a higher price, and ReasoningTokens those of OutputTokens
	// that the model thought; 0 where it does not say.
	CachedTokens     int64 `json:"cached_tokens,omitempty"`
	CacheWriteTokens int64 `json:"cache_write_tokens,omitempty"`
	ReasoningTokens  int64 `json:"reasoning_tokens,omitempty"`
	// Estimated reports that the server did not count all of it: the rest is estimated from the
	// length of the texts.
	Estimated bool `json:"estimated,omitempty"`
}

// Add returns the sum of both.
func (u Usage) Add(other Usage) Usage {
	return Usage{
		InputTokens: u.InputTokens + other.InputTokens, OutputTokens: u.OutputTokens + other.OutputTokens,
		CachedTokens: u.CachedTokens + other.CachedTokens, CacheWriteTokens: u.CacheWriteTokens + other.CacheWriteTokens,
		ReasoningTokens: u.ReasoningTokens + other.ReasoningTokens, Estimated: u.Estimated || other.Estimated,
	}
}

// Total is input plus output.
func (u Usage) Total() int64 { return u.InputTokens + u.OutputTokens }

// Spending is how much a session uses, or how much it may use; as a bound, a zero field is none.
type Spending struct {
	Steps  int     `json:"steps,omitempty"`  // replies of the model
	Calls  int     `json:"calls,omitempty"`  // tool calls that were not refused
	Tokens int64   `json:"tokens,omitempty"` // input plus output
	TimeMS Millis  `json:"time_ms,omitempty"`
	USD    float64 `json:"usd,omitempty"`
}

// Add returns the sum of both.
func (s Spending) Add(other Spending) Spending {
	return Spending{s.Steps + other.Steps, s.Calls + other.Calls, s.Tokens + other.Tokens, s.TimeMS + other.TimeMS, s.USD + other.USD}
}

// UnknownValue is a value of a kind that is not built in, such as that of a handler.
type UnknownValue struct {
	Name Kind
	Raw  json.RawMessage
}

// userBody is the JSON of a payload or a value of a kind of a user's own. The
// user's part is one field, so that its names never meet those of the envelope.
type userBody struct {
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Output    json.RawMessage `json:"output,omitempty"`
}

// Arguments returns the arguments of a payload of a user's own kind, a JSON value; nil without any.
func (u UnknownPayload) Arguments() (json.RawMessage, error) {
	var body userBody
	if err := json.Unmarshal(u.Raw, &body); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Name, err)
	}
	return body.Arguments, nil
}

// Output returns what a handler of a user's own kind returned, a JSON value; nil when nothing.
func (u UnknownValue) Output() (json.RawMessage, error) {
	var body userBody
	if err := json.Unmarshal(u.Raw, &body); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Name, err)
	}
	return body.Output, nil
}

// HTTPFetch requests one page of the web, from the worker, under the network rules of
// sandboxes: only hosts that the worker allows, and no private addresses. Redirects are
// judged again.
type HTTPFetch struct {
	// URL begins with "http://" or "https://", and contains no user name and no password.
	URL string `json:"url"`
	// Method is "GET" or "HEAD"; "" means "GET".
	Method string `json:"method,omitempty"`
	// Headers are sent with the request. Allowed are Accept, Accept-Language, If-Modified-Since,
	// If-None-Match and User-Agent.
	Headers map[string]string `json:"headers,omitempty"`
	// MaxBytes is how much of the body is read, at most 16 MiB; 0 means 5 MiB. What
	// follows is left out.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	// Raw returns HTML as it is; otherwise it becomes Markdown.
	Raw bool `json:"raw,omitempty"`
}

// HTTPFetchResult answers [HTTPFetch]. A response with an error status, such as 404, is a result.
type HTTPFetchResult struct {
	// URL is the address of the response, after redirects.
	URL string `json:"url"`
	// Status is the status code of HTTP.
	Status int `json:"status"`
	// MediaType is that of the body as it was sent, such as "text/html".
	MediaType string `json:"media_type,omitempty"`
	// Title is the title of an HTML page.
	Title string `json:"title,omitempty"`
	// Content is the body: Markdown for HTML, other text in UTF-8, an image or a PDF document as it
	// is. It is empty for everything else, and for HEAD.
	Content Bytes `json:"content,omitempty"`
	// Image is the media type of an image or document that models take, such as "image/png".
	Image string `json:"image,omitempty"`
	// Bytes is how many bytes of the body were read.
	Bytes int64 `json:"bytes"`
	// Truncated reports that the body is longer than the limit.
	Truncated bool `json:"truncated,omitempty"`
	// Redirects are the addresses before URL, the first one as requested.
	Redirects []string `json:"redirects,omitempty"`
	// Headers are those of the response that help to request again: ETag, Last-Modified,
	// Retry-After, Location, Content-Length.
	Headers map[string]string `json:"headers,omitempty"`
}

// MCPServer is a server of the Model Context Protocol: a program that runs in the session's sandbox
// and speaks on standard input and output, or a URL (streamable HTTP). The worker replaces
// "${NAME}" in the values of Env, Headers and Client, and in URL, by its own variable NAME, if its
// operator allows that; the value is never sent. It replaces "{tools}" in Command and Args by its
// folder of tools, as in [ToolRun].
type MCPServer struct {
	Name    string            `json:"name"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Cwd     string            `json:"cwd,omitempty"` // a directory of the workspace
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// Client logs in to a URL; nil means that the worker uses a login of a person, if it has one.
	Client *MCPClient `json:"client,omitempty"`
}

// MCPClient is a client that an authorization server knows and that no person stands behind
// (OAuth 2.1, client credentials).
type MCPClient struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
	// Scopes are asked for; none are those that the server names.
	Scopes []string `json:"scopes,omitempty"`
}

// MCPCall calls a tool of a server, which lives in the session's sandbox from call to call.
type MCPCall struct {
	Server MCPServer `json:"server"`
	Tool   string    `json:"tool"`
	// Arguments is a JSON object.
	Arguments json.RawMessage `json:"arguments"`
	// ReadOnly says that the tool changes nothing: a call that was stopped leaves nothing behind
	// that has to be ended with the server.
	ReadOnly bool `json:"read_only,omitempty"`
}

// MCPCallResult answers [MCPCall].
type MCPCallResult struct {
	Content []MCPContent `json:"content"`
	// Structured is the result as JSON, of tools that have one.
	Structured json.RawMessage `json:"structured,omitempty"`
	// IsError means that the tool reported a failure.
	IsError bool `json:"is_error,omitempty"`
	// ToolsChanged says that the server has other tools since it was asked for them.
	ToolsChanged bool `json:"tools_changed,omitempty"`
	// Notes are what the worker has to say about it, a sentence each.
	Notes []string `json:"notes,omitempty"`
}

// MCPContent is a part of what a tool of a server returned. Type is text, image, audio, resource
// (an embedded one) or resource_link.
type MCPContent struct {
	Type string `json:"type"`
	Text string `json:"text,omitempty"`
	// Data is an image, a sound or a resource that is no text.
	Data      Bytes  `json:"data,omitempty"`
	MediaType string `json:"media_type,omitempty"`
	URI       string `json:"uri,omitempty"`
	Name      string `json:"name,omitempty"`
}
