package embedded

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/toolfleet/toolfleet/internal/pause"
)

const (
	// tidyEvery is the time between two looks at the memory of this process.
	tidyEvery = 5 * time.Second
	// fineMemory is what a process may keep of its heap without being tidied.
	fineMemory = 96 << 20
	// tidyWorth is how much has to be allocated before it is tidied, tidyTimes times: the server
	// keeps blocks for ten seconds after their last use.
	tidyWorth = 16 << 20
	tidyTimes = 4
)

// keepTidy gives memory back to the system until ctx ends. The server passes workspaces on in
// blocks of 8 MB from pools, which two collections empty; an idle runtime collects every two
// minutes.
func keepTidy(ctx context.Context) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	for seen, left := uint64(0), 0; pause.For(ctx, tidyEvery); left-- {
		metrics.Read(samples)
		allocated, held := samples[0].Value.Uint64(), samples[1].Value.Uint64()-samples[2].Value.Uint64()
		if allocated-seen > tidyWorth {
			seen, left = allocated, tidyTimes
		}
		if left > 0 && held > fineMemory {
			runtime.GC()
			debug.FreeOSMemory() // collects once more
		}
	}
}
