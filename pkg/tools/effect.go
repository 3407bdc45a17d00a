package tools

// Effect is what calls of a tool may do, whatever their arguments are. Others are told it, as a
// hint; nothing here depends on it but which tools are offered where there is no session's loop.
type Effect struct {
	// ReadOnly says that nothing changes.
	ReadOnly bool
	// Hinted says that ReadOnly is the word of an MCP server, which nobody here has checked.
	Hinted bool
	// Idempotent says that a second call with the same arguments changes nothing more.
	Idempotent bool
	// Additive says that what changes is only added to: nothing is replaced or removed.
	Additive bool
	// Open says that calls may reach beyond the workspace: other systems, the network.
	Open bool
	// Loop says that calls are answered by a session's loop, as those about its jobs are.
	Loop bool
}
