package inplace_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// holdsEnv has this program hold a directory: its value is the folder, and the directory.
const holdsEnv = "TOOLFLEET_TEST_HOLDS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdsEnv); dir != "" {
		hold(dir)
	}
	goleak.VerifyTestMain(m)
}

// hold locks a directory until the process is killed.
func hold(dir string) {
	q, err := inplace.Open(filepath.Join(dir, "queue"))
	if err == nil {
		_, err = q.Lock(context.Background(), inplace.Use{Directory: dir, Owner: "other", Program: "coordinator run", Session: "s-1"}, nil)
	}
	fmt.Println(err)
	for {
		time.Sleep(time.Hour) // a process that only selects may end as deadlocked
	}
}

// patience bounds what must happen.
const patience = time.Minute

func open(t *testing.T) *inplace.Queue {
	t.Helper()
	q, err := inplace.Open(filepath.Join(t.TempDir(), "queue"))
	require.NoError(t, err)
	return q
}

func use(dir, owner string, uses ...protocol.Use) inplace.Use {
	return inplace.Use{Directory: dir, Owner: owner, Program: "coordinator run", Session: protocol.SessionID(owner), Uses: uses}
}

// shared and exclusive use a path in the directory; each owner has another name for it.
func shared(owner, path string) protocol.Use {
	return protocol.Use{Key: protocol.ResourceKey("sandbox/" + owner + path), Access: protocol.Shared}
}

func exclusive(owner, path string) protocol.Use {
	return protocol.Use{Key: protocol.ResourceKey("sandbox/" + owner + path), Access: protocol.Exclusive}
}

func lock(t *testing.T, q *inplace.Queue, u inplace.Use) (unlock func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	unlock, err := q.Lock(ctx, u, nil)
	require.NoError(t, err)
	return unlock
}

// blocked reports whether a use has to wait, and leaves the queue.
func blocked(t *testing.T, q *inplace.Queue, u inplace.Use) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	unlock, err := q.Lock(ctx, u, nil)
	if err != nil {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return true
	}
	unlock()
	return false
}

func TestQueue_ConflictsAreThoseOfOneLane(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	below, aside, link := filepath.Join(dir, "a/b"), filepath.Join(dir, "c"), filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.MkdirAll(below, 0o700))
	require.NoError(t, os.Mkdir(aside, 0o700))
	require.NoError(t, os.Symlink(dir, link))
	tests := map[string]struct {
		first, second inplace.Use
		conflict      bool
	}{
		"the whole":                      {use(dir, "x"), use(dir, "y"), true},
		"of one owner":                   {use(dir, "x"), use(dir, "x"), false},
		"by another path":                {use(dir, "x"), use(link, "y"), true},
		"readers":                        {use(dir, "x", shared("x", "")), use(dir, "y", shared("y", "/f")), false},
		"a reader of what is written":    {use(dir, "x", exclusive("x", "/f")), use(dir, "y", shared("y", "/f")), true},
		"a reader of all":                {use(dir, "x", exclusive("x", "/f")), use(dir, "y", shared("y", "")), true},
		"writers of one file":            {use(dir, "x", exclusive("x", "/f")), use(dir, "y", exclusive("y", "/f")), true},
		"writers of two files":           {use(dir, "x", exclusive("x", "/f")), use(dir, "y", exclusive("y", "/g")), false},
		"one that contains the other":    {use(dir, "x"), use(below, "y"), true},
		"one in the other":               {use(below, "x"), use(dir, "y"), true},
		"one in the other, by a link":    {use(below, "x"), use(link, "y"), true},
		"a reader above a writer":        {use(below, "x", exclusive("x", "/f")), use(dir, "y", shared("y", "")), true},
		"readers, one above the other":   {use(below, "x", shared("x", "")), use(dir, "y", shared("y", "")), false},
		"directories beside each other":  {use(below, "x"), use(aside, "y"), false},
		"a directory in neither of them": {use(dir, "x"), use(t.TempDir(), "y"), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := open(t)
			unlock := lock(t, q, test.first)
			if test.conflict {
				require.True(t, blocked(t, q, test.second))
			} else {
				lock(t, q, test.second)()
			}
			unlock()
			lock(t, q, test.second)()
		})
	}
}

func TestQueue_NothingOverlapsAndEveryoneHasATurn(t *testing.T) {
	t.Parallel()
	q, dir := open(t), t.TempDir()
	var inside, done atomic.Int64
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			for range 25 {
				unlock, err := q.Lock(t.Context(), use(dir, fmt.Sprint(i)), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two are inside")
				}
				done.Add(1)
				inside.Add(-1)
				unlock()
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 16*25, done.Load())
}

// TestQueue_TheFirstToComeIsTheFirstToGo: readers that keep coming do not starve a writer.
func TestQueue_TheFirstToComeIsTheFirstToGo(t *testing.T) {
	t.Parallel()
	q, dir := open(t), t.TempDir()
	reading := lock(t, q, use(dir, "reader", shared("reader", "")))
	wrote := make(chan func(), 1)
	go func() {
		unlock, err := q.Lock(t.Context(), use(dir, "writer"), nil)
		if err != nil {
			t.Error(err)
		}
		wrote <- unlock
	}()
	late := use(dir, "late", shared("late", ""))
	require.Eventually(t, func() bool { return blocked(t, q, late) }, patience, time.Millisecond, "it stands behind the writer")
	reading()
	(<-wrote)()
	lock(t, q, late)()
}

// TestQueue_ACrashFreesTheDirectory, and those who wait are told for whom.
func TestQueue_ACrashFreesTheDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	holder := exec.CommandContext(t.Context(), os.Args[0])
	holder.Env = append(os.Environ(), holdsEnv+"="+dir)
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	said, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "<nil>\n", said)
	q, err := inplace.Open(filepath.Join(dir, "queue"))
	require.NoError(t, err)
	told := make(chan string, 1)
	got := make(chan error, 1)
	go func() {
		unlock, err := q.Lock(t.Context(), use(dir, "me"), func(holder string) { told <- holder })
		if err == nil {
			unlock()
		}
		got <- err
	}()
	select {
	case other := <-told:
		require.Regexp(t, fmt.Sprintf(`^process %d \(coordinator run, session s-1\), which uses %s since [0-9:]+$`, holder.Process.Pid, dir), other)
	case err := <-got:
		require.FailNow(t, "it does not wait", "%v", err)
	}
	require.NoError(t, holder.Process.Kill())
	require.Error(t, holder.Wait())
	require.NoError(t, <-got)
	lock(t, q, use(dir, "next"))()
}

// TestQueue_CommandsStartCoordinators in the directory that they have to themselves.
func TestQueue_CommandsStartCoordinators(t *testing.T) {
	dir, folder := t.TempDir(), filepath.Join(t.TempDir(), "queue")
	q, err := inplace.Open(folder)
	require.NoError(t, err)
	command := lock(t, q, use(dir, "x"))
	t.Setenv(inplace.Env, q.EnvOf("x"))
	inside, err := inplace.Open(folder)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() { // behind the command, and so before what that starts
		defer close(ended)
		if unlock, err := q.Lock(t.Context(), use(dir, "y"), nil); err == nil {
			unlock()
		}
	}()
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(folder)
		return err == nil && len(entries) == 3 // two tickets, and the lock
	}, patience, time.Millisecond)
	first := lock(t, inside, use(dir, "x1"))
	require.True(t, blocked(t, inside, use(dir, "x2")), "two of them exclude each other")
	first()
	lock(t, inside, use(dir, "x2"))()
	command()
	<-ended
	held := lock(t, q, use(dir, "z"))
	require.True(t, blocked(t, inside, use(dir, "x3")), "the command has ended, and covers nothing")
	held()
}

func TestQueue_AFolderThatCannotBeUsedIsAnError(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := inplace.Open(filepath.Join(file, "queue"))
	require.ErrorContains(t, err, "not a directory")
	q := open(t)
	_, err = q.Lock(t.Context(), use(filepath.Join(file, "gone"), "x"), nil)
	require.ErrorContains(t, err, "gone: not a directory")
}

// Two processes may name their lanes alike, as those that bring back the workspace of one session.
func TestQueue_OwnersAreOfTheirProcess(t *testing.T) {
	t.Parallel()
	dir, folder := t.TempDir(), filepath.Join(t.TempDir(), "queue")
	one, err := inplace.Open(folder)
	require.NoError(t, err)
	two, err := inplace.Open(folder)
	require.NoError(t, err)
	unlock := lock(t, one, use(dir, "x"))
	require.True(t, blocked(t, two, use(dir, "x")))
	require.False(t, blocked(t, one, use(dir, "x")), "the lane orders them")
	unlock()
	lock(t, two, use(dir, "x"))()
}
