package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/worker"
)

// batch is what a model opens a batch with.
type batch struct {
	Account string `json:"account"`
}

// entry is each further call: one more refund, or the word to pay.
type entry struct {
	Cents int  `json:"cents,omitempty"`
	Pay   bool `json:"pay,omitempty"`
}

// collect keeps the refunds of a batch in its variables until it is told to pay all of them,
// in one write of the account's file. A batch that was ended, forgotten or lost with its
// worker has paid nothing: what must not be lost belongs into the ledger, not into a state.
func collect(ledger string) func(ctx context.Context, dialog *worker.Dialog[entry, string], b batch) (string, error) {
	return func(_ context.Context, dialog *worker.Dialog[entry, string], b batch) (string, error) {
		if ledger == "" {
			return "", errNoLedger
		}
		sum, refunds := 0, 0
		answer := "an empty batch for " + b.Account
		for {
			next, err := dialog.Yield(answer)
			switch {
			case errors.Is(err, worker.ErrOver):
				return fmt.Sprintf("nothing was paid: %d refunds are dropped", refunds), nil
			case err != nil:
				return "", err
			case next.Pay:
				paid, err := payBack(ledger, string(dialog.Call().ID()), refund{Account: b.Account, Cents: sum})
				return fmt.Sprintf("%s has got back %d cents in all", b.Account, paid.Refunded), err
			}
			sum, refunds = sum+next.Cents, refunds+1
			answer = fmt.Sprintf("%d refunds, %d cents", refunds, sum)
		}
	}
}
