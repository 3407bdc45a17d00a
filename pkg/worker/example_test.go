package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/tools"
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

// Run is a worker in a program that has a main function of its own. It ends with its context, after
// the calls that run.
func ExampleRun() {
	url, data, shutdown := startServer()
	defer shutdown()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)

	greet := worker.Handle("greet", func(_ context.Context, _ *worker.Call, args struct{ Name string }) (string, error) {
		stop() // one call is enough here
		return "hello " + args.Name, nil
	})
	ended := make(chan error, 1)
	go func() {
		ended <- worker.Run(ctx, worker.Options{
			Server:   worker.Server{URL: url},
			Handlers: []worker.Handler{greet},
			Driver:   "none", // for its handlers alone
			Data:     data,
		})
	}()

	fmt.Println(greetAda(url)) // in another program
	fmt.Println("ended:", <-ended)
	// Output:
	// hello Ada
	// ended: <nil>
}

// greetAda calls the handler.
func greetAda(url string) string {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{URL: url})
	if err != nil {
		return err.Error()
	}
	defer func() { _ = client.Close() }()
	table, err := tools.NewTable(tools.NewRemote[struct{ Name string }]("greet", "Greet.", tools.Remote{Kind: "greet", Resources: []tools.Resource{}}))
	if err != nil {
		return err.Error()
	}
	outcome, err := client.Call(ctx, fleet.Call{Table: table, Tool: "greet", Arguments: `{"Name":"Ada"}`})
	if err != nil {
		return err.Error()
	}
	return outcome.Text
}

// startServer starts a NATS server, and makes a directory for it and the worker.
func startServer() (url, data string, shutdown func()) {
	dir, err := os.MkdirTemp("", "toolfleet-example-")
	if err != nil {
		panic(err)
	}
	s, err := server.NewServer(&server.Options{Port: server.RANDOM_PORT, Host: "127.0.0.1", JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		panic(err)
	}
	s.Start()
	return s.ClientURL(), dir, func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
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
