package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// smallDisk runs a command in a process with mounts of its own, where a directory is a disk. The
// disk is full while there is a file "full", and has said so when there is "is-full".
const smallDisk = `
disk=$1 control=$2; shift 2
mount -t tmpfs -o size=8g none "$disk" || { echo "NO DISK" >&2; exit 1; }
until_() { while ! eval "$1"; do kill -0 $$ 2>/dev/null || exit 0; sleep 0.05; done; }
(
	until_ '[ -e "$control/full" ]'
	used=$(df -k "$disk" | awk 'END { print $3 }')
	mount -o "remount,size=$((used + 64))k" "$disk"
	dd if=/dev/zero of="$disk/filler" bs=4k 2>/dev/null
	: >"$control/is-full"
	until_ '[ ! -e "$control/full" ]'
	rm "$disk/filler"
	mount -o remount,size=8g "$disk"
) >/dev/null 2>&1 </dev/null &
exec "$@"
`

// disk is a disk of a process, which can be full.
type disk struct{ dir, control string }

// onDisk runs a coordinator with a disk of its own, which args tell it of.
func onDisk(t *testing.T, args func(dir string) []string) (*process, disk) {
	t.Helper()
	d := disk{t.TempDir(), t.TempDir()}
	private := []string{"--user", "--map-root-user", "--mount", "--propagation", "private", "sh", "-c"}
	probe := execute(t, "unshare", launch{args: append(slices.Clip(private), `mount -t tmpfs none "$1"`, "sh", d.dir)})
	if probe.code != 0 {
		processtest.Unavailable(t, "no process here has users and mounts of its own, so no disk is full: "+probe.stderr)
	}
	wrapped := append(append(private, smallDisk, "sh", d.dir, d.control, coordinator), args(d.dir)...)
	return start(t, "unshare", launch{args: wrapped}), d
}

// fill returns when the disk is full.
func (d disk) fill(t *testing.T) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(d.control, "full"), nil, 0o600))
	waitUntil(t, func() bool { _, err := os.Stat(filepath.Join(d.control, "is-full")); return err == nil })
}

// empty gives the disk room again.
func (d disk) empty(t *testing.T) {
	t.Helper()
	require.NoError(t, os.Remove(filepath.Join(d.control, "full")))
}

// TestRun_OnAFullDisk: it ends within its limit, or goes on when there is room; and one sentence
// says why nothing happens.
func TestRun_OnAFullDisk(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		limit, answer string
		room          bool
		code          int
	}{
		"ends within its limit":    {limit: "8s", code: 3},
		"goes on when it has room": {limit: "0s", room: true, answer: "Answered.\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hold := newGate(t)
			model := script(t, say("Once.", bash("c1", hold.pass()+"; echo done")), say("Answered."))
			p, disk := onDisk(t, func(dir string) []string {
				return []string{"run", "--model", model, "--data", filepath.Join(dir, "data"), "--sandbox", "process", "--timeout", test.limit, "do it"}
			})
			p.waitFor(t, `\[1\.1 bash\] +. running on (\S+)\n`)
			disk.fill(t)
			hold.open(t)
			p.waitFor(t, `the disk of `+disk.dir+`/data/\S+ \(--data\) is full: nothing can be stored; it goes on when there is room within 30s`)
			full := time.Now()
			if test.room {
				disk.empty(t)
			}
			require.Equal(t, test.code, p.wait(t), p)
			require.Less(t, time.Since(full), 30*time.Second, "without a limit it tries so long")
			require.Equal(t, test.answer, p.stdout.String(), p)
			require.NotContains(t, p.stderr.String(), "level=", "what follows from it is not told: %s", p)
		})
	}
}
