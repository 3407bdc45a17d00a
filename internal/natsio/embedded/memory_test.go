package embedded_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
)

// passData makes this test binary a process whose server passes objects on, over a data directory.
const passData = "TEST_PASS_DATA"

// Memory that workspaces took on their way through a server is given back soon after, also by one
// that is idle then.
func TestServer_GivesMemoryBack(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), passData+"="+t.TempDir(), "GOGC=300")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// pass passes 256 MB through a server, and fails when it keeps the memory.
func pass(dir string) {
	ctx := context.Background()
	server, err := embedded.Start(ctx, embedded.Options{Data: dir})
	must(err)
	defer server.Close()
	nc, err := natsio.Connect(ctx, "", natsio.ConnectOptions{Name: "pass", Options: server.Options()})
	must(err)
	defer nc.Close()
	js, err := jetstream.New(nc, patient)
	must(err)
	objects, err := js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "passed"})
	must(err)
	most := uint64(0)
	for range 4 {
		_, err := objects.Put(ctx, jetstream.ObjectMeta{Name: "workspace"}, io.LimitReader(zeros{}, 64<<20))
		must(err)
		object, err := objects.Get(ctx, "workspace")
		must(err)
		_, err = io.Copy(io.Discard, object)
		must(err)
		must(objects.Delete(ctx, "workspace"))
		most = max(most, held())
	}
	look := time.NewTicker(100 * time.Millisecond)
	for end := time.After(time.Minute); held() > 128<<20; {
		select {
		case <-look.C:
		case <-end:
			must(fmt.Errorf("%d MB are held, of %d at most", held()>>20, most>>20))
		}
	}
	fmt.Printf("%d MB at the end, %d MB at most\n", held()>>20, most>>20)
}

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// held is how much memory the runtime of this process has of the system.
func held() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}
