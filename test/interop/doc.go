// Package interop tests what others made that speaks the Model Context Protocol against
// [github.com/toolfleet/toolfleet/internal/mcp/mcpserver]: the official conformance suites, the
// inspector, agents. The suites call tools, resources and prompts by name: the fixture has the
// tools as tools of a fleet, so that each goes by a lane and a worker, and adds to the server only
// what a fleet does not have. Sessions also export their traces to OpenTelemetry's collector.
package interop
