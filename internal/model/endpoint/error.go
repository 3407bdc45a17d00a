package endpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// The types of an [Error].
const (
	TypeRateLimited     = "rate_limited"            // 429; tried again
	TypeServerError     = "server_error"            // 5xx, 409, or an error within a stream; tried again
	TypeConnection      = "connection"              // no connection, or it failed before the answer; tried again, except for a bad certificate
	TypeStreamBroken    = "stream_broken"           // the answer broke off; tried again
	TypeTimeout         = "timeout"                 // silence, or 408; tried again
	TypeQuotaExceeded   = "quota_exceeded"          // the account has nothing left
	TypeAuthentication  = "authentication"          // 401
	TypePermission      = "permission_denied"       // 403
	TypeNotFound        = "not_found"               // 404: unknown model, or a wrong base URL
	TypeContextLength   = "context_length_exceeded" // the conversation is too long for the model
	TypeInvalidRequest  = "invalid_request"         // every other 4xx
	TypeInvalidResponse = "invalid_response"        // the server does not speak this API
	TypeContentFilter   = "content_filter"          // the provider's filter stopped the reply
	TypeUnfinished      = "unfinished"              // the reply ended for a reason that is no end, or the server rejects what the model wrote; tried again where that may help
)

// Error says why a model did not reply.
type Error struct {
	// Type is one of the Type constants.
	Type string
	// Model and BaseURL say who was asked; the URL is without its user and query.
	Model   string
	BaseURL string
	// Status is the HTTP status; 0 when there was none.
	Status int
	// Code is the server's own code or type of the error; may be empty.
	Code string
	// Message is the server's message, or what happened in our words.
	Message string
	// RetryAfter is how long the server asked to wait; 0 when it did not.
	RetryAfter time.Duration

	param     string // the field of the request that the server names
	baseHint  string // how base URLs of the API end
	permanent bool   // not worth another attempt, although others of its type are
	cause     error
}

// Error names the model, the server, the status, the server's message, and what to check.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("model " + e.Model + " at " + e.BaseURL + ": ")
	if e.Status != 0 {
		b.WriteString(strconv.Itoa(e.Status))
		if text := http.StatusText(e.Status); text != "" {
			b.WriteString(" " + text)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Message)
	b.WriteString(e.hint())
	return b.String()
}

// Unwrap returns what caused the error on this side; nil when the server reported it.
func (e *Error) Unwrap() error { return e.cause }

// Is makes the error of a conversation that is too long a [loop.ErrTooLong].
func (e *Error) Is(target error) bool {
	return target == loop.ErrTooLong && e.Type == TypeContextLength
}

// Down reports whether the provider is the reason, so that another one may reply.
func (e *Error) Down() bool { return e.retryable() || e.Type == TypeQuotaExceeded }

// ErrorType is the error's low-cardinality name.
func (e *Error) ErrorType() string { return e.Type }

// hint says which setting to look at.
func (e *Error) hint() string {
	switch e.Type {
	case TypeAuthentication:
		return " (check the API key)"
	case TypeQuotaExceeded:
		return " (check the plan and billing of the account)"
	case TypeNotFound:
		return " (check the model name, and the base URL" + e.baseHint + ")"
	case TypeConnection:
		return " (check the base URL, and that a server listens there)"
	default:
		return ""
	}
}

// Text is where servers say what is wrong: their message, and the field that they name.
func (e *Error) Text() string { return strings.TrimSpace(e.param + " " + e.Message) }

func (e *Error) retryable() bool {
	switch e.Type {
	case TypeRateLimited, TypeServerError, TypeConnection, TypeStreamBroken, TypeTimeout, TypeUnfinished:
		return !e.permanent
	default:
		return false
	}
}

// typeOf classifies an answer by its status, 0 in a stream, and by the server's code and type.
func typeOf(status int, failure serverReply) string {
	if named := typeOfCode(failure.Code, failure.Type, failure.Reason); named != "" {
		return named
	}
	switch {
	case usedUp(status, failure.Message):
		return TypeQuotaExceeded
	case tooLong(status, failure.Message):
		return TypeContextLength
	case rejectedReply.MatchString(failure.Message):
		return TypeUnfinished
	case strings.Contains(failure.Message, "API key not valid"): // of Google, with status 400
		return TypeAuthentication
	case status == 0:
		return typeInWords(failure)
	case status == http.StatusTooManyRequests:
		return TypeRateLimited
	case status == http.StatusRequestTimeout:
		return TypeTimeout
	case status >= 500, status == http.StatusConflict:
		return TypeServerError
	case status == http.StatusUnauthorized:
		return TypeAuthentication
	case status == http.StatusForbidden:
		return TypePermission
	case status == http.StatusNotFound:
		return TypeNotFound
	default:
		return TypeInvalidRequest
	}
}

// tooLongWords are how servers say that a conversation is too long for a model. A limit of
// max_tokens alone, of a name or an id is not meant: less of the conversation would not help.
var tooLongWords = regexp.MustCompile(`(?i)` + strings.Join([]string{
	`context (length|window|size|limit)`,                                                    // OpenAI, vLLM, SGLang, llama.cpp, Anthropic, MiniMax
	`(prompt|input)( is|) too (long|large)`,                                                 // Anthropic, Bedrock, Ollama
	`maximum (prompt|model|input) length`,                                                   // xAI, vLLM
	`(input|prompt) (token count|tokens|length)\b.*(exceed|limit|longer|should be|must be)`, // Gemini, SGLang, Qwen
	`prompt exceeds|exceeded model token limit`,                                             // Zhipu, Moonshot
	`reduce the length of the (messages|prompt|input)`,                                      // Groq, Cerebras
	`too many tokens:`,                                      // Cohere
	"`inputs` tokens \\+ `max_new_tokens`",                  // TGI
	`must be at least 1, got -`,                             // vLLM, of the tokens that are left for the reply
	`payload size exceeds|request exceeds the maximum size`, // Gemini, Anthropic
	requestTooLarge,
}, "|"))

// requestTooLarge also comes with 429, for a request that alone is above a limit of tokens per
// minute. No wait helps there.
const requestTooLarge = `request (body )?too large`

var requestTooLargeWords = regexp.MustCompile(`(?i)` + requestTooLarge)

// tooLong reports whether an answer says that the conversation is too long.
func tooLong(status int, message string) bool {
	switch status {
	case http.StatusRequestEntityTooLarge:
		return true
	case http.StatusTooManyRequests:
		return requestTooLargeWords.MatchString(message)
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return false
	default:
		return tooLongWords.MatchString(message)
	}
}

// rejectedReply is how servers say that the reply itself was wrong: another one may not be.
var rejectedReply = regexp.MustCompile(`(?i)^(tool call validation failed|failed to call a function|failed to parse tool call arguments|attempted to call tool\b)` +
	`|\bparameters for tool \S+ did not match schema`)

// noCreditWords are how servers say that an account has nothing left to pay with.
var noCreditWords = regexp.MustCompile(`(?i)` + strings.Join([]string{
	`\bcredit balance\b`, // Anthropic
	`\binsufficient (account )?(balance|credits?|funds)\b|\bnot enough (balance|credits?|funds)\b`, // DeepSeek, OpenRouter, Moonshot
	`\b(no|any|out of|all (of )?(your |the )?available|monthly included) credits\b`,                // xAI, Hugging Face
	`\bin arrears\b|\bnot in good standing\b|\baccount is in good standing\b`,                      // Qwen
}, "|"))

// limitedWords are how servers say that an account may spend no more. With 429 they are about a
// limit that a wait helps with.
var limitedWords = regexp.MustCompile(`(?i)\busage limits?\b|\b(spend|spending|credit|key) limit\b|\b(requires|enable|check your) billing\b|\bbilling (is|has been|account is)\b`)

// usedUp reports whether an answer says that the account has no credit left.
func usedUp(status int, message string) bool {
	switch status {
	case http.StatusPaymentRequired:
		return true
	case http.StatusTooManyRequests:
		return noCreditWords.MatchString(message)
	case 0, http.StatusBadRequest, http.StatusForbidden, http.StatusPreconditionFailed:
		return noCreditWords.MatchString(message) || limitedWords.MatchString(message)
	default:
		return false
	}
}

// typeOfCode knows the codes that say more than the status. It returns "" for others.
func typeOfCode(names ...string) string {
	for _, name := range names {
		switch name {
		case "insufficient_quota", "billing_hard_limit_reached", "billing_error", "billing_not_active", "BILLING_DISABLED", "Arrearage":
			return TypeQuotaExceeded
		case "tool_use_failed", "output_parse_failed": // Groq
			return TypeUnfinished
		case "context_length_exceeded", "exceed_context_size_error", "request_too_large",
			"model_max_prompt_tokens_exceeded", "tokens_limit_reached":
			return TypeContextLength
		case "content_filter":
			return TypeContentFilter
		}
	}
	return ""
}

// typeInStream classifies an error object that came instead of the next chunk, where
// the status is already spent.
func typeInStream(failure serverReply) string {
	if status, err := strconv.Atoi(failure.Code); err == nil && status >= 400 {
		return typeOf(status, failure)
	}
	return typeOf(0, failure)
}

// typeInWords classifies an error without a status. What it does not know is the server's error.
func typeInWords(failure serverReply) string {
	for _, named := range [][2]string{
		{"rate_limit", TypeRateLimited},
		{"authentication", TypeAuthentication},
		{"invalid_api_key", TypeAuthentication},
		{"permission", TypePermission},
		{"not_found", TypeNotFound},
		{"invalid_request", TypeInvalidRequest},
		{"BadRequest", TypeInvalidRequest},
	} {
		if strings.Contains(failure.Type, named[0]) || strings.Contains(failure.Code, named[0]) {
			return named[1]
		}
	}
	return TypeServerError
}

// retryAfter is how long a server asks to wait: retry-after-ms in milliseconds, else
// Retry-After in seconds or as a date. A date is read by the server's own clock when
// it tells it, so that the clocks need not agree. It returns 0 when there is no wish.
func retryAfter(header http.Header, now time.Time) time.Duration {
	if d, ok := parseDelay(header.Get("Retry-After-Ms"), time.Millisecond); ok {
		return d
	}
	value := header.Get("Retry-After")
	if d, ok := parseDelay(value, time.Second); ok {
		return d
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if serverNow, err := http.ParseTime(header.Get("Date")); err == nil {
		now = serverNow
	}
	return max(at.Sub(now), 0)
}

func parseDelay(value string, unit time.Duration) (time.Duration, bool) {
	number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || math.IsNaN(number) || number < 0 {
		return 0, false
	}
	// A float beyond an int64 has no defined conversion.
	return time.Duration(min(number*float64(unit), float64(math.MaxInt64/2))), true
}

// maxMessage bounds the part of a server's message that errors repeat, in bytes.
const maxMessage = 2000

// serverReply is what a server said about an error, whichever form it used.
type serverReply struct {
	Message string
	Type    string
	Code    string
	Param   string        // the field of the request that it is about
	Reason  string        // of Google, as BILLING_DISABLED
	Delay   time.Duration // after which it may be tried again; 0 when it does not say
}

type errorFields struct {
	Object  string          `json:"object"`
	Error   json.RawMessage `json:"error"`
	Message json.RawMessage `json:"message"`
	Detail  json.RawMessage `json:"detail"`
	Param   json.RawMessage `json:"param"`
	Type    json.RawMessage `json:"type"`
	Code    json.RawMessage `json:"code"`
	Status  json.RawMessage `json:"status"`
	Details json.RawMessage `json:"details"`
}

// reply is what the fields of an error say.
func (f *errorFields) reply() serverReply {
	out := serverReply{Message: lenient.String(f.Message), Type: lenient.String(f.Type), Code: lenient.String(f.Code), Param: lenient.String(f.Param)}
	if out.Type == "" { // of Google, as RESOURCE_EXHAUSTED
		out.Type = lenient.String(f.Status)
	}
	details, _ := lenient.List("details", f.Details)
	for _, raw := range details {
		if detail, err := lenient.FieldsOf("details", raw); err == nil {
			out.Delay = max(out.Delay, delayOf(detail["retryDelay"]))
			out.Reason = cmp.Or(out.Reason, lenient.String(detail["reason"]))
		}
	}
	return out
}

// delayOf is a duration as Google writes it, "30s"; 0 for all else.
func delayOf(raw json.RawMessage) time.Duration {
	delay, err := time.ParseDuration(lenient.String(raw))
	if err != nil {
		return 0
	}
	return max(delay, 0)
}

// parseError reads the forms in which servers report errors: {"error": {...}}, which
// is OpenAI's; a list of those; {"error": "text"}; {"object": "error", "message": ...};
// and, unless it stands within a stream, {"message": ...} and {"detail": ...}. It
// reports whether body is one.
func parseError(body []byte, inStream bool) (serverReply, bool) {
	body = bytes.TrimSpace(body)
	if bytes.HasPrefix(body, []byte("[")) {
		var list []json.RawMessage
		if json.Unmarshal(body, &list) != nil || len(list) == 0 {
			return serverReply{}, false
		}
		return parseError(list[0], inStream)
	}
	var outer errorFields
	if json.Unmarshal(body, &outer) != nil {
		return serverReply{}, false
	}
	if !lenient.IsBlank(outer.Error) { // some servers have an empty one in each chunk
		var inner errorFields
		if json.Unmarshal(outer.Error, &inner) != nil || lenient.IsBlank(inner.Message) {
			return serverReply{Message: lenient.String(outer.Error), Code: lenient.String(outer.Code)}, true
		}
		return inner.reply(), true
	}
	if inStream && outer.Object != "error" {
		return serverReply{}, false
	}
	for _, message := range []json.RawMessage{outer.Message, outer.Detail} {
		if !lenient.IsBlank(message) {
			outer.Message = message
			return outer.reply(), true
		}
	}
	return serverReply{}, false
}

// excerpt makes a server's text fit for one line of an error.
func excerpt(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "\uFFFD")), " ")
	return prose.Cut(text, maxMessage)
}
