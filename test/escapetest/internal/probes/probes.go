//go:build linux

// Package probes tries to get out of the sandbox in which it runs, in one way a run, and
// says how that went. [Main] is the program that the escape suite builds and runs there.
package probes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// probe tries one thing.
type probe func(h canary.Host) canary.Verdict

// probes are all probes by name; the part before the slash is their group.
func probes() map[string]probe {
	all := map[string]probe{}
	for _, group := range []map[string]probe{
		fileProbes(), setIDProbes(), rootProbes(), deviceProbes(), processProbes(), targetProbes(), privilegeProbes(), namespaceProbes(),
		kernelProbes(), descriptorProbes(), ipcProbes(), networkProbes(), neighbourProbes(), secretProbes(), sharedProbes(), useProbes(),
	} {
		maps.Copy(all, group)
	}
	return all
}

// Names returns the names of all probes, sorted.
func Names() []string { return slices.Sorted(maps.Keys(probes())) }

// Main is the program:
//
//	probe NAME          one probe; the verdict is one line of JSON
//	probe worker        a process with a secret, as a worker is one
//	probe neighbour A   another sandbox: serves the secret at the abstract socket A
//	probe writer        a command that may write, beside those that may not
//	probe read-only/NAME PID FD ADDRESS
//	                    one way to change a workspace that is read-only, beside that writer
//	probe share BYTES   leaves memory behind that it has shared
//	probe hold FILE BYTES
//	                    has a file in its memory, as much of it as said; "-" is a file of its own
//	probe nothing       ends at once
//	probe host FEATURE  outside of a sandbox: whether this host has what probes are about
func Main(args []string) {
	if len(args) < 2 {
		fail(errors.New("usage: probe worker | neighbour ABSTRACT | share BYTES | hold FILE BYTES | nothing | host FEATURE | NAME"))
	}
	switch name := args[1]; name {
	case "worker":
		beWorker()
	case "neighbour":
		beNeighbour(readHost(), args[2])
	case "share":
		beSharing(args[2])
	case "hold":
		beHolding(args[2], args[3])
	case "nothing": // what probes start
	case "host":
		answer(attempt(func(h canary.Host) canary.Verdict { return works(features()[args[2]].try(h)) }, readHost()))
	case "writer":
		beReadOnlyWriter()
	default:
		if strings.HasPrefix(name, "read-only/") {
			mainReadOnly(name, args[2:])
			return
		}
		try, known := probes()[name]
		if !known {
			fail(fmt.Errorf("unknown probe %q", name))
		}
		answer(attempt(try, readHost()))
	}
}

func readHost() canary.Host {
	var h canary.Host
	data, err := os.ReadFile(canary.File)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil {
		fail(err)
	}
	return h
}

func answer(v canary.Verdict) {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		fail(err)
	}
}

func fail(err error) {
	_, _ = fmt.Fprintln(os.Stderr, "probe:", err)
	os.Exit(2)
}

// judge calls a success an escape, and an error containment.
func judge(err error) canary.Verdict {
	if err == nil {
		return escape("done")
	}
	return contained(err)
}

func escape(detail string) canary.Verdict {
	return canary.Verdict{Outcome: canary.Escape, Detail: detail}
}

func leak(detail string) canary.Verdict { return canary.Verdict{Outcome: canary.Leak, Detail: detail} }

func contained(err error) canary.Verdict {
	return canary.Verdict{Outcome: canary.Contained, Detail: errnoName(err)}
}

func unsupported(detail string) canary.Verdict {
	return canary.Verdict{Outcome: canary.Unsupported, Detail: detail}
}

// works calls an error broken.
func works(err error) canary.Verdict {
	if err != nil {
		return canary.Verdict{Outcome: canary.Broken, Detail: errnoName(err)}
	}
	return canary.Verdict{Outcome: canary.Works}
}

// errnoName is the name of the errno within an error, else its text.
func errnoName(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return name(errno)
	}
	return err.Error()
}

// How long an answer may take: of this host, which may be busy, and of others, from whom none may
// come.
const (
	answerWait  = 10 * time.Second
	outsideWait = time.Second
)

// dial connects to this host.
func dial(network, address string) (net.Conn, error) { return dialWithin(answerWait, network, address) }

func dialWithin(most time.Duration, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: most}).DialContext(context.Background(), network, address)
}

// command is a program to run.
func command(program string, args ...string) *exec.Cmd {
	return exec.CommandContext(context.Background(), program, args...)
}
