// Package argument reads the arguments of tool calls, which a model wrote.
//
//	text ── parse, strictly ──► object ── coerce ──► validate ──► JSON, keys in their order
//	             │                                      │
//	             └────────────── every fault ◄──────────┘──► one message, with the schema
//
// Parsing takes one JSON object and nothing that could be read in two ways. Coercion
// takes what has one meaning only, such as "3" for an integer, for what it means; see coerce.
package argument
