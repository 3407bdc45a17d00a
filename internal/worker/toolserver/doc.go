// Package toolserver keeps servers of the Model Context Protocol alive between the calls of their
// tools.
//
//	mcp_call ──► Servers.Call ──► does it live? ── no ──► program: sandbox.Exec, fed and read
//	                                   │                   URL: streamable HTTP, from the worker
//	   result ◄── content, structured ◄┴─ tools/call ──► progress ──► live output
//
// A server lives in one sandbox, with its state, until it has had no call for a while, its sandbox
// is closed, or it ends by itself; while one lives the worker keeps the lane, as for background
// processes. One that has died is started again by the next call, with growing delays if it dies
// again and again. The resource keys of calls, not this package, decide which calls may overlap.
//
// When a call is stopped, the server is notified, and ended after a moment unless the tool only
// reads: it might ignore the notification, and change files after the call's result.
package toolserver
