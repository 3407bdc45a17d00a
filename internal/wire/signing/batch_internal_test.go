package signing

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Calls of one moment share a signature, each proves that it is one of them, and none can take
// another's place.
func TestBatch_EachCallProvesItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	signer, err := Make(dir)
	require.NoError(t, err)
	now := time.Now()
	at := strconv.FormatInt(now.UnixMilli(), 10)
	for _, many := range []int64{1, 2, 3, 7, 64, 100} {
		keys, err := Open(filepath.Join(dir, PublicFile))
		require.NoError(t, err)
		var b *batch
		for i := range many {
			joined, index, first := signer.join(tlog.RecordHash(message("tf", at, fmt.Append(nil, i))))
			require.Equal(t, i, index)
			require.Equal(t, i == 0, first)
			b = joined
		}
		signer.sign(b)
		for i := range many {
			value, err := signer.value(b, i, at)
			require.NoError(t, err)
			require.Nil(t, check(keys, "tf", value, fmt.Append(nil, i), now), value)
			require.NotNil(t, check(keys, "tf", value, fmt.Append(nil, i+1), now))
			parts := strings.Fields(value)
			parts[3] = fmt.Sprint((i + 1) % many)
			if many > 1 {
				require.NotNil(t, check(keys, "tf", strings.Join(parts, " "), fmt.Append(nil, i), now), "of another")
			}
		}
		require.Len(t, keys.roots, 1, "one signature was checked")
	}
}

// check is the error of [Keys.Check].
func check(keys *Keys, fleet protocol.Fleet, value string, body []byte, stored time.Time) *protocol.Error {
	_, fault := keys.Check(fleet, value, body, stored)
	return fault
}
