// Package mcpserver is the fleet as a server of the Model Context Protocol
// (https://modelcontextprotocol.io/specification): its tools are tools of the protocol, and a
// request to call one becomes a call of the fleet.
//
//	client ──tools/call──► [Server] ──plan, policy──► dispatcher ──► lanes, workers
//	       ◄──progress────          ◄──live output───
//	       ◄──result──────          ◄──result────────
//
// The protocol itself is the official SDK's. Here is what it does not know: which sandbox a client
// has, what a plan says of a tool, in which order calls came, and how a person is asked.
package mcpserver
