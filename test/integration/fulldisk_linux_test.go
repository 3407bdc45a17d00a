package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// smallDisk runs a command in a process with mounts of its own, where a directory is a disk. The
// disk is full while there is a file "full", and "is-full" is there as long as it is.
const smallDisk = `
disk=$1 control=$2; shift 2
mount -t tmpfs -o size=8g none "$disk" || { echo "NO DISK" >&2; exit 1; }
until_() { while ! eval "$1"; do kill -0 $$ 2>/dev/null || exit 0; sleep 0.05; done; }
full() { mount -o "remount,size=$(($(df -k "$disk" | awk 'END { print $3 }') + 64))k" "$disk"; }
(
	until_ '[ -e "$control/full" ]'
	until_ full # more may be used meanwhile
	dd if=/dev/zero of="$disk/filler" bs=4k 2>/dev/null
	: >"$control/is-full"
	until_ '[ ! -e "$control/full" ]'
	rm "$disk/filler"
	mount -o remount,size=8g "$disk"
	rm "$control/is-full"
) >/dev/null 2>&1 </dev/null &
exec "$@"
`

// disk is a disk of a process, which can be full.
type disk struct{ dir, control string }

// programOnDisk runs a program with a disk of its own.
func programOnDisk(t *testing.T, program string, args func(dir string) []string) (*process, disk) {
	t.Helper()
	d := disk{t.TempDir(), t.TempDir()}
	private := []string{"--user", "--map-root-user", "--mount", "--propagation", "private", "sh", "-c"}
	probe := execute(t, "unshare", launch{args: append(slices.Clip(private), `mount -t tmpfs none "$1"`, "sh", d.dir)})
	if probe.code != 0 {
		processtest.Unavailable(t, "no process here has users and mounts of its own, so no disk is full: "+probe.stderr)
	}
	wrapped := append(append(private, smallDisk, "sh", d.dir, d.control, program), args(d.dir)...)
	return start(t, "unshare", launch{args: wrapped, group: true}), d
}

// fill returns when the disk is full.
func (d disk) fill(t *testing.T) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(d.control, "full"), nil, 0o600))
	waitUntil(t, func() bool { return exists(filepath.Join(d.control, "is-full")) })
}

// empty returns when the disk has room again.
func (d disk) empty(t *testing.T) {
	t.Helper()
	require.NoError(t, os.Remove(filepath.Join(d.control, "full")))
	waitUntil(t, func() bool { return !exists(filepath.Join(d.control, "is-full")) })
}

// restarted runs the rest of its arguments, again after each end with 1, when the file of its first
// argument is there.
const restarted = `
go=$1; shift
until "$@"; [ $? -ne 1 ]; do echo "it has ended" >&2; until [ -e "$go" ]; do sleep 0.05; done; done
`

// restartOnDisk runs a coordinator with a disk of its own, and again when it has ended and the
// returned function is called.
func restartOnDisk(t *testing.T, args func(dir string) []string) (p *process, d disk, again func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "go")
	p, d = programOnDisk(t, "sh", func(dir string) []string {
		return append([]string{"-c", restarted, "sh", file, coordinator}, args(dir)...)
	})
	return p, d, func() { require.NoError(t, os.WriteFile(file, nil, 0o600)) }
}

// TestRun_OnAFullDisk: it ends with one sentence, and the next start completes its turn when there
// is room.
func TestRun_OnAFullDisk(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	model := script(t, say("Once.", bash("c1", hold.pass()+"; echo done")), say("Answered."))
	p, disk, again := restartOnDisk(t, func(dir string) []string {
		return []string{"run", "--model", model, "--data", filepath.Join(dir, "data"), "--session", "s-full", "--sandbox", "process", "do it"}
	})
	p.waitFor(t, `\[1\.1 bash\] +. running on (\S+)\n`)
	disk.fill(t)
	hold.open(t)
	p.waitFor(t, `the disk of `+disk.dir+`/data/\S+ \(--data\) is full: make room there, then start again`)
	p.waitFor(t, `it has ended`)
	require.NotContains(t, p.stderr.String(), "level=", "what follows from it is not reported: %s", p)
	disk.empty(t)
	again()
	require.Equal(t, 0, p.wait(t), p)
	require.Equal(t, "Answered.\n", p.stdout.String(), p)
}

// TestLocal_OnAFullDisk: so does a session of this machine, whose server is another process.
func TestLocal_OnAFullDisk(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	model := script(t, say("Once.", bash("c1", hold.pass()+"; echo done")), say("Answered."))
	file := filepath.Join(t.TempDir(), "go")
	p, disk := programOnDisk(t, "sh", func(dir string) []string {
		return []string{
			"-c", restarted, "sh", file, "env", "XDG_STATE_HOME=" + dir, coordinator, "run", "--model",
			model, "--session", "s-full", "--sandbox", "process", "do it",
		}
	})
	p.waitFor(t, `\[1\.1 bash\] +. running on (\S+)\n`)
	disk.fill(t)
	hold.open(t)
	p.waitFor(t, `the disk of `+disk.dir+`/\S+ is full: make room there, then start again`)
	p.waitFor(t, `it has ended`)
	disk.empty(t)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Equal(t, 0, p.wait(t), p)
	require.Equal(t, "Answered.\n", p.stdout.String(), p)
}

// TestServe_OnAFullDisk: it ends with one sentence. The next start has what was stored, and the
// turn, its call and the output, for which there was no room, are complete.
func TestServe_OnAFullDisk(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	reached := filepath.Join(t.TempDir(), "reached")
	model := script(t, say("Once.", bash("c1", ": >'"+reached+"'; "+hold.pass()+"; seq 500000")), say("Answered."))
	listen := fmt.Sprintf("127.0.0.1:%d", natsiotest.FreePorts(t, 1)[0])
	p, disk, again := restartOnDisk(t, func(dir string) []string {
		return []string{"serve", "--model", model, "--listen", listen, "--data", filepath.Join(dir, "data")}
	})
	flags := seen(p, pasted(t, p.waitFor(t, `start workers with: worker (.*)\n`)[1]))
	w := start(t, worker, launch{args: append([]string{"--sandbox", "process", "--data", t.TempDir()}, flags...)})
	w.waitFor(t, `takes calls of pool default`)
	submitted := start(t, coordinator, launch{args: append([]string{"submit", "--json", "do it"}, flags[:4]...)})
	waitUntil(t, func() bool { return exists(reached) })
	disk.fill(t)
	hold.open(t)
	p.waitFor(t, `the disk of `+disk.dir+`/data\S* \(--data\) is full: make room there, then start again`)
	p.waitFor(t, `it has ended`)
	disk.empty(t)
	again()
	require.Equal(t, 0, submitted.wait(t), submitted)
	all := results(events(t, submitted.stdout.String()))
	require.Equal(t, "ok", all["c1"].Status)
	require.Contains(t, all["c1"].Content, "\n500000\n", "the end of the output")
	require.Contains(t, all["c1"].Content, "all of it: read it from")
}

// TestWorker_OnAFullDisk: the model is told of the disk of the worker's workspaces, and the session
// goes on when there is room.
func TestWorker_OnAFullDisk(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	hold := newGate(t)
	reached := filepath.Join(t.TempDir(), "reached")
	fill := "head -c 20000000 /dev/zero >big || echo refused"
	model := script(t,
		say("Full.", bash("c1", fill), use("c2", "write", object{"path": "a", "content": strings.Repeat("a", 1<<20)}), bash("c3", "head -c 3000000 /dev/zero")),
		say("Again.", bash("c4", ": >'"+reached+"'; "+hold.pass()+"; rm -f big; echo room"),
			use("c5", "write", object{"path": "b", "content": strings.Repeat("b", 1<<20)}), bash("c6", "head -c 3000000 /dev/zero")),
		say("Done."))
	startServe(t, model, b.flags...)
	p, disk := programOnDisk(t, worker, func(dir string) []string {
		return append([]string{"--sandbox", "process", "--data", filepath.Join(dir, "data")}, b.flags...)
	})
	p.waitFor(t, `takes calls of pool default`)
	disk.fill(t)
	submitted := start(t, coordinator, launch{args: append([]string{"submit", "--json", "do it"}, b.flags...)})
	waitUntil(t, func() bool { return exists(reached) })
	disk.empty(t)
	hold.open(t)
	require.Equal(t, 0, submitted.wait(t), submitted)
	all := results(events(t, submitted.stdout.String()))
	require.Contains(t, all["c1"].Content, "No space left on device")
	require.Contains(t, all["c2"].Content, `write "a": the disk of /workspace is full (no space left on device); delete what is not needed`)
	require.Equal(t, "ok", all["c3"].Status, "an output needs no disk of the worker: %s", all["c3"].Content)
	require.Contains(t, all["c3"].Content, "[the whole output could not be stored: the disk of the worker is full]")
	require.Contains(t, all["c6"].Content, "all of it: read it from")
	require.Contains(t, p.stderr.String(), disk.dir+"/data/", "the operator reads which disk it is")
	require.Equal(t, "room", strings.TrimSpace(all["c4"].Content))
	require.Equal(t, "ok", all["c5"].Status)
}

// seen names the files of a process on a disk of its own, as others reach them.
func seen(p *process, flags []string) []string {
	for i := range flags {
		if filepath.IsAbs(flags[i]) {
			flags[i] = filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "root", flags[i])
		}
	}
	return flags
}
