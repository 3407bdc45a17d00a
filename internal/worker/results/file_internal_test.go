package results

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// changingFS is a workspace with one file, which has other content from the second piece on.
func changingFS(before, after string, piece int) sandbox.FS {
	return sandbox.NewFS(func(_ context.Context, payload protocol.Payload, _ []protocol.Roots) (protocol.Value, error) {
		read, _ := payload.(sandbox.FilesReadAt)
		at, content := int(read.From), before
		if at > 0 {
			content = after
		}
		from := min(at, len(content))
		return []byte(content[from:min(from+piece, len(content))]), nil
	})
}

// TestFileReader_KeepsWhatWasRead: or nothing, when the file is another by now.
func TestFileReader_KeepsWhatWasRead(t *testing.T) {
	t.Parallel()
	const content = "one two three four"
	sum := sha256.Sum256([]byte(content))
	file := protocol.FilesReadResult{Path: "f", Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
	for name, test := range map[string]struct {
		after string
		same  bool
	}{
		"as it was": {content, true}, "other text": {"one two three FOUR", false},
		"longer": {content + " five", false}, "shorter": {"one two", false}, "gone": {"", false},
	} {
		fs := changingFS(content, test.after, 4)
		got, err := io.ReadAll(iotest.OneByteReader(&fileReader{ctx: t.Context(), fs: fs, file: file, digest: sha256.New()}))
		if test.same {
			require.NoError(t, err, name)
			require.Equal(t, content, string(got))
			continue
		}
		require.ErrorIs(t, err, errFileChanged, name)
	}
}

// TestFileReader_LeavesTheMarkOut: lines and bytes of what is kept are those that a reader was
// shown.
func TestFileReader_LeavesTheMarkOut(t *testing.T) {
	t.Parallel()
	const content = "\uFEFFone two"
	sum := sha256.Sum256([]byte(content))
	for raw, want := range map[bool]string{false: "one two", true: content} {
		file := protocol.FilesReadResult{Path: "f", Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:]), BOM: true, Raw: raw}
		got, err := io.ReadAll(&fileReader{ctx: t.Context(), fs: changingFS(content, content, 4), file: file, digest: sha256.New()})
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}

func TestBase64Reader(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 2, 3, 48 << 10, 48<<10 + 1, 200_000} {
		content := strings.Repeat("x", size)
		got, err := io.ReadAll(&base64Reader{raw: strings.NewReader(content)})
		require.NoError(t, err)
		require.Equal(t, base64.StdEncoding.EncodeToString([]byte(content)), string(got), size)
	}
	_, err := io.ReadAll(&base64Reader{raw: iotest.ErrReader(errFileChanged)})
	require.ErrorIs(t, err, errFileChanged)
}
