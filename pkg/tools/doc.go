// Package tools is what a model sees: tools, their schemas, and what becomes of a tool call.
package tools
