package snapshot_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// endless has a head, and then pieces without end.
type endless struct {
	head  string
	piece func(i int) string
	n     int
	read  int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.head == "" {
		e.head = e.piece(e.n)
		e.n++
	}
	n := copy(p, e.head)
	e.head = e.head[n:]
	e.read += n
	return n, nil
}

// TestReader_EndsSoon whatever has no end: one entry beyond what a tree may have, or after the most
// that an entry takes.
func TestReader_EndsSoon(t *testing.T) {
	t.Parallel()
	const most = 1000
	constant := func(piece string) func(int) string { return func(int) string { return piece } }
	numbered := func(format string) func(int) string { return func(i int) string { return fmt.Sprintf(format, i) } }
	part := `{"size":1,"sum":"s","body":"b"},`
	for name, c := range map[string]struct {
		head  string
		piece func(int) string
		tree  bool // of a tree, else of a delta
		want  error
		read  int
	}{
		"entries":             {`{"d":{"type":"dir"}`, numbered(`,"d%d":{"type":"dir"}`), true, snapshot.ErrLimit, 32 << 10},
		"entries of one name": {`{"d":{"type":"dir"}`, constant(`,"d":{"type":"dir"}`), true, snapshot.ErrLimit, 32 << 10},
		"parts": {
			`{"d":{"type":"dir"}`, numbered(`,"f%d":{"type":"file","size":4,"parts":[` + strings.Repeat(part, 3) + `{"size":1,"sum":"s","body":"b"}]}`), true, snapshot.ErrLimit, 128 << 10,
		},
		"parts of an entry":  {`{"f":{"type":"file","size":4,"parts":[`, constant(part), true, snapshot.ErrLimit, 48 << 20},
		"a name":             {`{"`, constant("long"), true, snapshot.ErrLimit, 48 << 20},
		"a field":            {`{"d":{"type":"`, constant("long"), true, snapshot.ErrLimit, 48 << 20},
		"space":              {`{`, constant("    "), true, snapshot.ErrLimit, 48 << 20},
		"no JSON":            {``, constant("long"), true, snapshot.ErrCorrupt, 32 << 10},
		"another type":       {`["d"`, constant(`,"d"`), true, snapshot.ErrCorrupt, 32 << 10},
		"changes":            {`{"set":{"d":{"type":"dir"}`, numbered(`,"d%d":{"type":"dir"}`), false, snapshot.ErrLimit, 32 << 10},
		"removals":           {`{"removed":["d"`, constant(`,"d"`), false, snapshot.ErrLimit, 32 << 10},
		"contents":           {`{"inline":"`, constant("long"), false, snapshot.ErrLimit, 48 << 20},
		"an entry of others": {`{"../d":{"type":"dir"}`, numbered(`,"d%d":{"type":"dir"}`), true, snapshot.ErrUnsafe, 32 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := &endless{head: c.head, piece: c.piece}
			r := snapshot.NewReader(from, snapshot.Limits{MaxEntries: most})
			var err error
			if c.tree {
				_, err = r.Tree()
			} else {
				_, err = r.Delta()
			}
			require.ErrorIs(t, err, c.want)
			require.Less(t, from.read, c.read)
		})
	}
}

// broken is a reader that fails.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestReader_AnErrorOfItsSourceIsItsOwn(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	_, err := snapshot.NewReader(broken{away}, snapshot.Limits{}).Tree()
	require.Equal(t, away, err)
}

// TestReader_ReadsWhatIsWritten, also names that are no text, and a tree that has all that it may.
func TestReader_ReadsWhatIsWritten(t *testing.T) {
	t.Parallel()
	want := snapshot.Delta{Removed: snapshot.Names{"a\xff", "b"}, Inline: []byte("content"), Set: snapshot.Tree{
		"d": {Type: protocol.TypeDir, Mode: 0o700}, "l\xfe": {Type: protocol.TypeSymlink, Target: "to\xff"},
		"f": {Type: protocol.TypeFile, Size: 3, ModTime: 1, Parts: []snapshot.Part{{Size: 1, Sum: "s", Body: "b", At: 7}, {Size: 2}}},
	}}
	encoded, err := json.Marshal(want)
	require.NoError(t, err)
	got, err := snapshot.NewReader(strings.NewReader(string(encoded)), snapshot.Limits{MaxEntries: 3, MaxBytes: 1}).Delta()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestTree_WithMorePartsThanAFileMayHave is nobody's: two holes are one.
func TestTree_WithMorePartsThanAFileMayHave(t *testing.T) {
	t.Parallel()
	node := snapshot.Node{Type: protocol.TypeFile}
	for range snapshot.MaxParts {
		node.Parts = append(node.Parts, snapshot.Part{Size: 1, Sum: "s", Body: "b"})
		node.Size++
	}
	require.NoError(t, snapshot.Tree{"f": node}.Validate(snapshot.Limits{}))
	node.Parts = append(node.Parts, snapshot.Part{Size: 1})
	node.Size++
	require.ErrorIs(t, snapshot.Tree{"f": node}.Validate(snapshot.Limits{}), snapshot.ErrLimit)
	node.Parts = []snapshot.Part{{Size: 1}, {Size: 1}}
	node.Size = 2
	require.ErrorIs(t, snapshot.Tree{"f": node}.Validate(snapshot.Limits{}), snapshot.ErrUnsafe)
}
