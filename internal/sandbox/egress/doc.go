// Package egress is the one way out of a sandbox that may reach some hosts: a proxy
// that runs beside the sandbox and serves a listener made inside of it, and a network
// stack at the other end of its interface, for programs that know no proxy. The sandbox
// has no other network, so what they refuse cannot be reached.
//
//	sandbox                        │  worker
//	program ── CONNECT, GET http:, ──► Proxy ── is it listed? ── resolve once ──┐
//	                               │    ▲                                       │
//	program ── DNS, TCP ── eth0 ─────► link   dial that address ◄── may it be reached?
//
// The link answers questions for listed names with addresses that mean them in that
// sandbox only, so a connection to one of them names a target as a request does.
//
// A request names a target. The target is brought into one spelling ([ParseTarget]:
// case, trailing dot, international names, forms of addresses), so that no other
// spelling of a name gets past the list ([Allow]). A name that is listed is resolved
// once, each of its addresses is judged, and one that passed is dialled, so that a
// name server cannot give one answer to the check and another to the connection.
// Addresses that are not on the public Internet are refused, and so are those of the
// host itself and those that [Options].Deny names: a listed name is no way into the
// network of the worker.
//
// The proxy does not look into encrypted connections. Whoever controls a listed host
// gets what a sandbox sends to it.
package egress
