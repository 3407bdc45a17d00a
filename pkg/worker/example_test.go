package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// A worker with a handler of your own is a program like this one. It has every flag of
// the worker. Handlers that use sandboxes need --sandbox; without it the worker has none, and takes
// calls of its handlers only: go run . --nats nats://127.0.0.1:4222 --creds FILE --sandbox auto.
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

// accounts is a store that refuses writes of former holders of an account's lane.
type accounts struct {
	mu       sync.Mutex
	balances map[string]int
	fences   map[string]uint64
}

var errFenced = errors.New("another worker has taken over the account")

func (a *accounts) add(account string, amount int, fence uint64) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if fence < a.fences[account] {
		return 0, errFenced
	}
	a.fences[account] = fence
	a.balances[account] += amount
	return a.balances[account], nil
}

// A worker that was stopped for longer than its lease may go on in the middle of a handler while
// another one has the lane. The store tells the two apart by their fences; in SQL that is
//
//	UPDATE accounts SET balance = balance + $1, fence = $2 WHERE id = $3 AND fence <= $2
func ExampleCall_Fence() {
	type arguments struct {
		Account string `json:"account"`
		Amount  int    `json:"amount"`
	}
	store := &accounts{balances: map[string]int{}, fences: map[string]uint64{}}
	credit := worker.Handle("credit", func(_ context.Context, call *worker.Call, args arguments) (int, error) {
		return store.add(args.Account, args.Amount, call.Fence())
	})

	worker.Main(credit)
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
