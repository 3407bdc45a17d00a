// Package escapetest tries to get out of sandboxes. [Run] puts things on the host that
// must not be reached (files, sockets, shared memory, a process with a secret), runs a
// static program in the sandbox that reaches for each of them and for what the kernel
// has to offer, and compares what it found with what the driver promises:
//
//	contained    nothing was reached
//	escape       something outside was reached or changed, or a layer is missing
//	leak         something about the outside was learnt
//	works        what every sandbox must allow is possible
//	broken       it is not
//	refused      the kernel ended the probe with a signal for what it tried
//	unsupported  the host lacks what the probe is about, as a process outside of the sandbox
//	             finds, too; counted, never silent
//
// A probe whose target is dead contains everything. So the suite has a control arm
// ([Control]): a driver without isolation, in which a list of probes must get out.
//
// Each arm is a process of its own, in namespaces that end with it when the suite is
// started as root: once as root, once as an ordinary user. The control arm never
// runs as root: what it reaches is real.
package escapetest
