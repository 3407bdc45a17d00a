//go:build linux

package ns_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func open(tb testing.TB) sandbox.Sandbox {
	tb.Helper()
	s, err := ns.New(nil).Open(tb.Context(), isolation.Spec{
		ID: "test", Workspace: tb.TempDir(), Scratch: tb.TempDir(),
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.Close()) })
	return s
}

// timed runs f b.N times and reports the median, and what nine of ten stay below, beside the mean.
func timed(b *testing.B, f func()) {
	b.Helper()
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		f()
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*9/10].Microseconds()), "p90-us")
}

func plain(b *testing.B) {
	b.Helper()
	if err := exec.CommandContext(b.Context(), "/bin/true").Run(); err != nil {
		b.Error(err)
	}
}

func command(b *testing.B, s sandbox.Sandbox) {
	b.Helper()
	if _, err := s.Exec(b.Context(), sandbox.Cmd{Argv: []string{"/bin/true"}}); err != nil {
		b.Error(err)
	}
}

// BenchmarkCommand measures a command beside a plain child of this process.
func BenchmarkCommand(b *testing.B) {
	b.Run("plain", func(b *testing.B) { timed(b, func() { plain(b) }) })
	s := open(b)
	b.Run("warm", func(b *testing.B) { timed(b, func() { command(b, s) }) })
	for name, run := range map[string]func(){"plain, 4 at once": func() { plain(b) }, "warm, 4 at once": nil} {
		b.Run(name, func(b *testing.B) {
			b.SetParallelism(max(1, 4/runtime.GOMAXPROCS(0)))
			b.RunParallel(func(pb *testing.PB) {
				do := run
				if do == nil {
					mine := open(b)
					do = func() { command(b, mine) }
				}
				for pb.Next() {
					do()
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

// BenchmarkSandbox measures a sandbox for one command, and with a worker whose heap is big.
func BenchmarkSandbox(b *testing.B) {
	driver := ns.New(nil)
	network := isolation.Network{}
	once := func(b *testing.B, workspace, scratch string) {
		b.Helper()
		s, err := driver.Open(b.Context(), isolation.Spec{ID: "test", Workspace: workspace, Scratch: scratch, Network: network})
		require.NoError(b, err)
		command(b, s)
		require.NoError(b, s.Close())
	}
	b.Run("create, command, destroy", func(b *testing.B) {
		workspace, scratch := b.TempDir(), b.TempDir()
		timed(b, func() { once(b, workspace, scratch) })
	})
	b.Run("with a proxy and a link", func(b *testing.B) {
		workspace, scratch := b.TempDir(), b.TempDir()
		network = serveList(b, "example.com")
		defer func() { network = isolation.Network{} }()
		timed(b, func() { once(b, workspace, scratch) })
	})
	b.Run("with a heap of 500 MB", func(b *testing.B) {
		workspace, scratch := b.TempDir(), b.TempDir()
		heap := make([]byte, 500<<20)
		for i := 0; i < len(heap); i += 4096 {
			heap[i] = 1
		}
		timed(b, func() { once(b, workspace, scratch) })
		runtime.KeepAlive(heap)
	})
}

// BenchmarkFiles measures a file operation inside.
func BenchmarkFiles(b *testing.B) {
	s := open(b)
	_, err := s.FS().Write(b.Context(), protocol.FilesWrite{Path: "file", Content: make([]byte, 4<<10)})
	require.NoError(b, err)
	b.Run("read of 4 KiB", func(b *testing.B) {
		timed(b, func() {
			if _, err := s.FS().Read(b.Context(), protocol.FilesRead{Path: "file"}); err != nil {
				b.Error(err)
			}
		})
	})
	b.Run("write of 4 KiB", func(b *testing.B) {
		timed(b, func() {
			if _, err := s.FS().Write(b.Context(), protocol.FilesWrite{Path: "file", Content: make([]byte, 4<<10)}); err != nil {
				b.Error(err)
			}
		})
	})
}

// BenchmarkProtected measures a sandbox with the protected places of a repository, beside one
// without.
func BenchmarkProtected(b *testing.B) {
	workspace := b.TempDir()
	require.NoError(b, os.MkdirAll(filepath.Join(workspace, ".git/hooks"), 0o755))
	for _, name := range []string{".git/config", "file"} {
		require.NoError(b, os.WriteFile(filepath.Join(workspace, name), make([]byte, 4<<10), 0o600))
	}
	driver := ns.New(nil)
	for name, protect := range map[string][]string{"nothing": nil, "repository": {".git/config", ".git/hooks"}} {
		made := func(b *testing.B) sandbox.Sandbox {
			b.Helper()
			s, err := driver.Open(b.Context(), isolation.Spec{ID: "test", Workspace: workspace, Scratch: b.TempDir(), Protection: isolation.Protection{Protect: protect}})
			require.NoError(b, err)
			return s
		}
		b.Run(name+", create, command, destroy", func(b *testing.B) {
			timed(b, func() {
				s := made(b)
				command(b, s)
				require.NoError(b, s.Close())
			})
		})
		b.Run(name+", read of 4 KiB", func(b *testing.B) {
			s := made(b)
			defer func() { require.NoError(b, s.Close()) }()
			timed(b, func() {
				if _, err := s.FS().Read(b.Context(), protocol.FilesRead{Path: "file"}); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// BenchmarkIdle measures the memory of a sandbox in which nothing runs, with its share of the
// launcher.
func BenchmarkIdle(b *testing.B) {
	const sandboxes = 10
	for range sandboxes {
		open(b)
	}
	children, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(b, err)
	var own, share float64
	for _, file := range children {
		pids, err := os.ReadFile(file)
		require.NoError(b, err)
		for pid := range strings.FieldsSeq(string(pids)) {
			rollup, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
			require.NoError(b, err, "who is not root cannot see this")
			own += kilobytes(b, rollup, "Private_Dirty:")
			share += kilobytes(b, rollup, "Pss:")
		}
	}
	for b.Loop() { // it takes no time
	}
	b.ReportMetric(own/sandboxes, "private-dirty-KiB")
	b.ReportMetric(share/sandboxes, "pss-KiB")
}

// kilobytes is the value of a line of a file in /proc.
func kilobytes(b *testing.B, text []byte, key string) float64 {
	b.Helper()
	_, rest, found := strings.Cut(string(text), "\n"+key)
	require.True(b, found, key)
	value, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	require.NoError(b, err)
	return value
}
