package kinds

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Every payload of the protocol is in the table, but the one that stands for large ones.
func TestKinds_HaveEveryPayload(t *testing.T) {
	t.Parallel()
	samples, err := filepath.Glob("../../wire/testdata/v1/payload/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, samples)
	all := table(Handlers{})
	for _, sample := range samples {
		body, err := os.ReadFile(sample)
		require.NoError(t, err)
		payload, err := wire.DecodePayload(body)
		require.NoError(t, err, sample)
		_, isUnknown := payload.(protocol.UnknownPayload)
		if wire.KindOf(payload) != wire.KindStored && !isUnknown {
			require.Contains(t, all, wire.KindOf(payload), strings.TrimSuffix(filepath.Base(sample), ".json"))
		}
	}
}
