// Package openai is a model behind an OpenAI-compatible HTTP API, streamed, with tools: the
// Responses API (responses.go) or chat completions. A base URL makes it vLLM, Ollama, a gateway, or
// any other server that speaks the same.
// Package endpoint has what adapters share: HTTP, retries, and the assembly of a reply.
//
// Chunks are decoded leniently in form and strictly in meaning (package lenient).
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
