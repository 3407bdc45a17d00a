package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// apart are the options of a worker that shares no disk with others.
func (r *rig) apart() worker.Options {
	o := r.options()
	o.Durability = worker.DurabilityCheckpoint
	return o
}

// A worker that keeps workspaces itself does not begin anew what the fleet has.
func TestCheckpoint_IsNotBegunAnewByAWorkerWithout(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.work(r.apart())
	requireOK(t, r.do("s-1", bash("echo one > f")))
	stop()
	_, stop = r.work(r.options())
	for range 2 {
		requireFault(t, r.do("s-1", bash("cat f")), protocol.StatusFailed, protocol.CodeWorkspaceUnavailable)
	}
	requireOK(t, r.do("s-2", bash("echo new")))
	stop()
	r.work(r.apart())
	requireOK(t, r.do("s-1", bash("cat f")))
}

// What nobody works in is removed from the disk when it is too much, and comes back from the fleet.
func TestCheckpoint_CopiesAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.apart()
	o.CacheBytes = 300 << 10
	w, stop := r.work(o)
	for _, session := range []protocol.SessionID{"s-1", "s-2", "s-3"} {
		requireOK(t, r.do(session, bash("head -c 200000 /dev/urandom > random; sha256sum random > sum")))
	}
	stop()
	require.NoError(t, w.Evict(t.Context()))
	left, err := os.ReadDir(filepath.Join(o.Data, "sandboxes"))
	require.NoError(t, err)
	require.Len(t, left, 1)
	_, stop = r.work(o)
	defer stop()
	for _, session := range []protocol.SessionID{"s-1", "s-2", "s-3"} {
		requireOK(t, r.do(session, bash("sha256sum -c sum")))
	}
}

func bash(command string) protocol.CommandRun {
	return protocol.CommandRun{Command: command, KeepShell: true}
}

func TestCheckpoint_AnotherMachineGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.work(r.apart())
	requireOK(t, r.do("s-1", bash(`mkdir -p a/b && echo one > a/b/f && chmod 600 a/b/f && ln -s b a/l && export LEFT=behind`)))
	requireOK(t, r.do("s-1", protocol.FilesWrite{Path: "written", Content: []byte("by a tool\n")}))
	stop()
	second := r.apart()
	_, stop = r.work(second)
	ran := value[protocol.CommandRunResult](t, r.do("s-1", bash(`echo $LEFT; cat a/b/f a/l/f written; stat -c %a a/b/f; rm a/b/f; echo two >> written`)))
	require.Equal(t, "behind\none\none\nby a tool\n600\n", string(ran.Stdout))
	stop()
	_, stop = r.work(r.apart())
	ran = value[protocol.CommandRunResult](t, r.do("s-1", bash(`cat written; ls a/b`)))
	require.Equal(t, "by a tool\ntwo\n", string(ran.Stdout))
	requireOK(t, r.do("s-1", bash(`echo three >> written`)))
	stop()
	r.work(second) // which has an older one
	ran = value[protocol.CommandRunResult](t, r.do("s-1", bash(`cat written`)))
	require.Equal(t, "by a tool\ntwo\nthree\n", string(ran.Stdout))
}
