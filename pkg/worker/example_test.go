package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

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

// A stateful tool keeps what it knows in variables. The model's first call returns the
// handle, tool_continue the next guess's answer; the coordinator has the other half:
//
//	tools.NewStateful[struct{}, int]("guess", "Guess a number from 1 to 100.", tools.Remote{Kind: "guess"})
func ExampleHandleStateful() {
	guess := worker.HandleStateful("guess", func(_ context.Context, dialog *worker.Dialog[int, string], _ struct{}) (string, error) {
		number, answer := 1+rand.IntN(100), "I have a number."
		for tries := 1; ; tries++ {
			guessed, err := dialog.Yield(answer)
			switch {
			case errors.Is(err, worker.ErrOver):
				return fmt.Sprintf("It was %d.", number), nil
			case err != nil:
				return "", err
			case guessed == number:
				return fmt.Sprintf("Yes, with %d tries.", tries), nil
			case guessed < number:
				answer = "More."
			default:
				answer = "Less."
			}
		}
	}, &worker.StatefulOptions{Idle: time.Minute})

	worker.Main(guess)
}
