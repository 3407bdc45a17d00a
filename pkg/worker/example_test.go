package worker_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// A worker with a handler of your own is a program like this one. It has every flag of
// the worker: go run . --nats nats://127.0.0.1:4222 --creds FILE --pool billing.
func ExampleMain() {
	type arguments struct {
		Path string `json:"path"`
	}
	count := worker.Handle("count_lines", func(ctx context.Context, call *worker.Call, args arguments) (int, error) {
		box, err := call.Sandbox(ctx)
		if err != nil {
			return 0, err
		}
		ran, err := box.Exec(ctx, sandbox.Cmd{Argv: []string{"cat", "--", args.Path}})
		if err != nil {
			return 0, err
		}
		if ran.ExitCode != 0 {
			return 0, fmt.Errorf("%s cannot be read: %s", args.Path, ran.Stderr.Data)
		}
		return strings.Count(string(ran.Stdout.Data), "\n"), nil
	})

	worker.Main(count)
}
