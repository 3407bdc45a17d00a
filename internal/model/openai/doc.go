// Package openai is a model behind an OpenAI-compatible HTTP API: chat completions, streamed, with
// tools. A base URL makes it vLLM, Ollama, a gateway, or any other server that speaks the same.
//
//	Reply ──► attempt ──► ask ──► endpoint ──► server
//	  ▲          │      (JSON)    (HTTP errors, SSE, silence)
//	  └─ wait ◄──┴─ *Error that is worth another attempt
//
// The endpoint is the only place that sees HTTP. It turns everything that can go wrong there into
// an [*Error]: a status and the server's own message, a connection that broke, an answer that is no
// stream, an error object in the middle of a stream, a server that fell silent. It hands on only
// the data of the event stream, without comments and keep-alives. Chunks are decoded leniently in
// form and strictly in meaning (wire.go). A piece of a text may end in the middle of a character.
//
// A reply is an answer only when it ends for a reason that is known to be an end (endOf).
//
// # Retries
//
// Rate limits (429), server errors (5xx), conflicts (409), connections that fail or break, replies
// that the server gave up, and silence (also 408) are tried again, with jittered exponential back-
// off, and not before the time that the server asks for (Retry-After, retry-after-ms). Nothing
// else is: a used-up quota, a bad key, an unknown model or a malformed request stay what they are.
// Each attempt is a whole new request. When an attempt broke in the middle of its text, the pieces
// of the next one start from the beginning again: whoever shows them live sees some words twice.
// The returned reply is the truth.
//
// # Servers differ
//
// What a server rejects (stream_options, max_tokens, reasoning that is sent back) it is asked again
// without, once, and never sent afterwards. Reasoning comes in several fields, and goes back, while
// its turn lasts, in the one that it came in. Tool calls are put together from pieces that may lack
// an index or an id, share an index, or come whole. Ids that are missing or repeated are made up,
// since a reply's ids must be unique. Arguments that are no JSON object go back to the server
// wrapped into one, because several servers fail on a history that holds anything else.
package openai
