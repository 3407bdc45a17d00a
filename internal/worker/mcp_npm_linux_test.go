package worker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/test/escapetest"
	"github.com/toolfleet/toolfleet/test/npmtest"
)

// npmServers are servers of others, in sandboxes that isolate.
type npmServers struct {
	*rig

	node, packages string
}

func newNPMServers(t *testing.T) (s npmServers, o worker.Options) {
	t.Helper()
	s = npmServers{rig: newRig(t), packages: npmtest.Install(t, "test/mcpservers", "no test of MCP servers of others")}
	o = s.isolatedOptions(t)
	node, err := exec.LookPath("node")
	require.NoError(t, err)
	s.node, err = filepath.EvalSymlinks(node)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(s.packages, 0o755)) // sandboxes have another user
	o.Mounts = []isolation.Mount{{Host: s.packages}}
	if !strings.HasPrefix(s.node, "/usr/") {
		o.Mounts = append(o.Mounts, isolation.Mount{Host: filepath.Dir(filepath.Dir(s.node))})
	}
	return s, o
}

// server is the spec of a package.
func (s npmServers) server(name string, args ...string) protocol.MCPServer {
	program := filepath.Join(s.packages, "node_modules", "@modelcontextprotocol", "server-"+name, "dist", "index.js")
	return protocol.MCPServer{Name: name, Command: s.node, Args: append([]string{program}, args...)}
}

func TestMCP_ServersOfOthersInASandbox(t *testing.T) {
	t.Parallel()
	s, o := newNPMServers(t)
	s.work(o)
	session := protocol.NewSessionID()
	files, memory, everything := s.server("filesystem", "."), s.server("memory"), s.server("everything")
	memory.Env = map[string]string{"MEMORY_FILE_PATH": "/tmp/memory.json"}
	if o.Caps.Level < isolation.LevelFull {
		memory.Env = map[string]string{"MEMORY_FILE_PATH": filepath.Join(workspaceOf(o.Data, session), "memory.json")}
	}
	for _, server := range []protocol.MCPServer{files, memory, everything} {
		list := s.do(session, wire.MCPList{Server: server})
		requireOK(t, list)
		require.Greater(t, len(value[wire.MCPListResult](t, list).Tools), 5, server.Name)
	}

	requireOK(t, s.do(session, protocol.CommandRun{Command: "echo of a command >a.txt"}))
	require.Equal(t, "of a command\n", said(t, s.do(session, serverCall(files, "read_text_file", `{"path":"a.txt"}`))))
	requireOK(t, s.do(session, serverCall(files, "write_file", `{"path":"b.txt","content":"of a server"}`)))
	require.Equal(t, "of a server", string(value[protocol.CommandRunResult](t, s.do(session, protocol.CommandRun{Command: "cat b.txt"})).Stdout))
	outside := s.do(session, serverCall(files, "read_text_file", `{"path":"/etc/passwd"}`))
	requireFault(t, outside, protocol.StatusFailed, protocol.CodeToolFailed)

	requireOK(t, s.do(session, serverCall(memory, "create_entities", `{"entities":[{"name":"Ada","entityType":"person","observations":["counts"]}]}`)))
	require.Contains(t, said(t, s.do(session, serverCall(memory, "read_graph", `{}`))), "Ada")

	require.Equal(t, "Echo: hi", said(t, s.do(session, serverCall(everything, "echo", `{"message":"hi"}`))))
	image := value[protocol.MCPCallResult](t, s.do(session, serverCall(everything, "get-tiny-image", `{}`)))
	require.Equal(t, "image/png", image.Content[1].MediaType)
	require.Equal(t, "\x89PNG", string(image.Content[1].Data[:4]))
	structured := value[protocol.MCPCallResult](t, s.do(session, serverCall(everything, "get-structured-content", `{"location":"New York"}`)))
	require.Contains(t, string(structured.Structured), "temperature")
	asked := s.do(session, serverCall(everything, "trigger-elicitation-request", `{}`))
	require.Contains(t, said(t, asked), "declined")
	require.Len(t, value[protocol.MCPCallResult](t, asked).Notes, 1)
}

// A server of others is killed in the middle of a call, from within its sandbox.
func TestMCP_AServerOfOthersThatIsKilled(t *testing.T) {
	t.Parallel()
	s, o := newNPMServers(t)
	if o.Caps.Level < isolation.LevelFull {
		t.Skip("NOT TESTED: commands do not see servers here")
	}
	s.work(o)
	session := protocol.NewSessionID()
	everything := s.server("everything")
	requireOK(t, s.do(session, serverCall(everything, "echo", `{"message":"hi"}`)))

	call := newCall(session, serverCall(everything, "trigger-long-running-operation", `{"duration":600,"steps":6000}`))
	call.Delivery, call.RunTimeout = protocol.AtMostOnce, protocol.MillisOf(2*patience)
	call.Resources[0].Key += "/mcp:everything"
	progress := make(chan *nats.Msg, 10_000)
	watching, err := s.NC.ChanSubscribe(wire.OutputSubject(s.Name, session, call.ID), progress)
	require.NoError(t, err)
	defer func() { require.NoError(t, watching.Unsubscribe()) }()
	result := make(chan *protocol.Result, 1)
	go func() {
		r, err := s.dispatcher.Call(t.Context(), &call)
		if err != nil {
			t.Error(err)
		}
		result <- r
	}()
	for limit := time.After(patience); ; {
		select {
		case m := <-progress:
			frame, err := wire.Decode[wire.Frame](m.Data)
			require.NoError(t, err)
			if !strings.Contains(string(frame.Data), "[progress ") {
				continue
			}
		case <-limit:
			require.Fail(t, "no progress is shown")
		}
		break
	}
	kill := newCall(session, protocol.CommandRun{
		Command: `for p in /proc/[0-9]*; do grep -q server-everything $p/cmdline && [ ${p#/proc/} != $$ ] && kill -9 ${p#/proc/}; done; true`,
	})
	kill.Resources[0].Key += "/beside"
	requireOK(t, s.dispatch(t.Context(), kill))
	killed := <-result
	requireFault(t, killed, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
	require.Contains(t, killed.Error.Message, "it was killed by SIGKILL")
	require.Equal(t, "Echo: hi", said(t, s.do(session, serverCall(everything, "echo", `{"message":"hi"}`))))
}

// Every toolset does what it promises in the sandboxes that are for ordinary users only, and
// in those of the default as such a user.
func TestToolsets_AsAnOrdinaryUser(t *testing.T) { //nolint:paralleltest // its arm is a process of its own
	escapetest.InArms(t, false, func(t *testing.T) {
		t.Helper()
		for name, opened := range map[string]isolation.Driver{
			"landlock": process.NewLandlock(nil), "ns": ns.New(nil), "bwrap": ns.New(&ns.Options{Launcher: ns.LauncherBwrap}),
		} {
			t.Run(name, func(t *testing.T) {
				caps, err := opened.Probe(t.Context())
				if err != nil && os.Getenv("TOOLFLEET_INTEGRATION") != "required" {
					t.Skipf("NOT TESTED: %s does not work here: %v", name, err)
				}
				toolsetsUnder(t, opened, caps)
			})
		}
	})
}

func toolsetsUnder(t *testing.T, opened isolation.Driver, caps isolation.Caps) {
	t.Helper()
	r := newRig(t)
	o := r.options()
	o.Driver, o.Caps = opened, caps
	r.work(o)
	runToolsets(t, func(t *testing.T, call protocol.Call) *protocol.Result {
		t.Helper()
		return r.dispatch(t.Context(), call)
	})
}
