// Command refunds is a worker with tools of its own: refund, which pays money back into an account,
// and refund_batch, a stateful tool that collects refunds first. It has every flag of the worker,
// and no sandboxes (--sandbox none, the default of a worker with handlers): it takes the calls of
// its own tools and leaves commands and files to others. The coordinator needs the manifests in
// tools/.
//
//	LEDGER=/var/lib/refunds go run ./examples/refunds --nats URL --creds FILE
//	bin/coordinator call --nats URL --creds FILE --tools examples/refunds/tools refund '{"account":"acme","cents":500}'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/toolfleet/toolfleet/pkg/worker"
)

// refund is what a model asks for.
type refund struct {
	Account string `json:"account"`
	Cents   int    `json:"cents"`
}

// account is a file of the ledger.
type account struct {
	Refunded int `json:"refunded"`
	// Calls are the refunds that are in, by the id of their call.
	Calls map[string]int `json:"calls"`
}

var errNoLedger = errors.New("the worker has no ledger: set LEDGER to a directory")

// limit is what one account can get back.
const limit = 100_000

func main() {
	ledger := os.Getenv("LEDGER")
	worker.Main(
		worker.Handle("refund", func(_ context.Context, call *worker.Call, r refund) (account, error) {
			return payBack(ledger, string(call.ID()), r)
		}),
		worker.HandleStateful("refund_batch", collect(ledger), &worker.StatefulOptions{Idle: 5 * time.Minute}),
	)
}

// payBack reads, changes and writes the account's file. It takes no lock: the tool's
// resource is account/{account}, so no other call for this account runs meanwhile, on
// any worker. A call that is run again finds itself in the file and pays nothing.
func payBack(ledger, call string, r refund) (account, error) {
	if ledger == "" {
		return account{}, errNoLedger
	}
	root, err := os.OpenRoot(ledger)
	if err != nil {
		return account{}, err
	}
	defer func() { _ = root.Close() }() // it holds no data
	file := r.Account + ".json"
	a := account{Calls: map[string]int{}}
	content, err := root.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(content, &a)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return account{}, err
	}
	if _, paid := a.Calls[call]; paid {
		return a, nil
	}
	if a.Refunded+r.Cents > limit {
		return account{}, fmt.Errorf("%s can get back %d cents at most: ask for less", r.Account, limit-a.Refunded)
	}
	a.Refunded += r.Cents
	a.Calls[call] = r.Cents
	if content, err = json.Marshal(a); err != nil {
		return account{}, err
	}
	temp := file + ".new"
	if err := root.WriteFile(temp, content, 0o600); err != nil {
		return account{}, err
	}
	return a, root.Rename(temp, file)
}
