package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// webhookCommand changes the webhooks of a fleet.
type webhookCommand struct {
	environment.ExistingFleet `group:"Fleet:"`

	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"1m" help:"Time limit of the command."`

	Add struct {
		Event   []string `placeholder:"EVENT" help:"Events to send, separated by commas: turn.ended, call.ended, approval.waiting, question.waiting. Default: all."`
		Session string   `placeholder:"ID" help:"Only session whose events are sent. Default: all sessions of the tenant."`
		Tenant  string   `placeholder:"NAME" help:"Tenant whose events are sent; * means all. Default: default."`
		URL     string   `arg:"" help:"Where events are sent: https, or http to a loopback address."`
	} `cmd:"" help:"Add a webhook, and print its id and the secret that signs what is sent. The secret is never shown again."`
	Ls struct {
		Failed string `placeholder:"ID" help:"List the failed deliveries of this webhook instead."`
	} `cmd:"" help:"List webhooks, with the deliveries that wait or have failed, and the last error."`
	Test struct{ webhookID } `cmd:"" help:"Send an event webhook.test, and wait until it has arrived."`
	Cont struct{ webhookID } `cmd:"" name:"resume" help:"Continue a paused webhook, and send its failed deliveries again."`
	Rm   struct{ webhookID } `cmd:"" help:"Remove a webhook with the deliveries that wait."`
}

type webhookID struct {
	ID string `arg:"" help:"Id of the webhook, as in the list."`
}

// verbs implements [group].
func (c *webhookCommand) verbs() map[string]command {
	verb := func(act func(context.Context, program, fleet.Webhooks) error) command {
		return fleetVerb{&c.ExistingFleet, c.Timeout, nil, func(ctx context.Context, p program, client *fleet.Client) error {
			return act(ctx, p, client.Webhooks())
		}}
	}
	return map[string]command{"add": verb(c.add), "ls": verb(c.list), "test": verb(c.test), "resume": verb(c.resume), "rm": verb(c.remove)}
}

func (c *webhookCommand) add(ctx context.Context, p program, all fleet.Webhooks) error {
	added, secret, err := all.Add(ctx, fleet.Webhook{
		URL: c.Add.URL, Events: c.Add.Event, SessionID: protocol.SessionID(c.Add.Session), Tenant: protocol.Tenant(c.Add.Tenant),
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, struct {
			fleet.Webhook

			Secret string `json:"secret"`
		}{added, secret})
	}
	_, err = fmt.Fprintf(p.Stdout, "%s\n%s\n", added.ID, secret)
	return err
}

func (c *webhookCommand) list(ctx context.Context, p program, all fleet.Webhooks) error {
	if c.Ls.Failed != "" {
		return c.listFailed(ctx, p, all)
	}
	list, err := all.List(ctx)
	if err != nil {
		return err
	}
	columns := "ID\tTENANT\tSESSION\tEVENTS\tWAITING\tFAILED\tSTATE\tURL\tLAST ERROR"
	return printList(p, c.JSON, list, "there are no webhooks", columns, func(w *fleet.Webhook) []any {
		state := "active"
		if w.Paused != "" {
			state = "paused: " + w.Paused
		}
		events := orDash(strings.Join(w.Events, ","))
		return []any{w.ID, w.Tenant, orDash(string(w.SessionID)), events, w.Waiting, w.Failed, state, w.URL, orDash(w.LastError)}
	})
}

func (c *webhookCommand) listFailed(ctx context.Context, p program, all fleet.Webhooks) error {
	list, err := all.Failed(ctx, c.Ls.Failed)
	if err != nil {
		return err
	}
	return printList(p, c.JSON, list, "", "EVENT\tTYPE\tATTEMPTS\tTIME\tERROR", func(f *fleet.FailedDelivery) []any {
		return []any{f.EventID, f.Type, f.Attempts, f.At.Local().Format(time.DateTime), f.Error}
	})
}

func (c *webhookCommand) test(ctx context.Context, p program, all fleet.Webhooks) error {
	test, err := all.Test(ctx, c.Test.ID, c.Timeout*9/10) // the rest is for connecting
	switch {
	case err != nil:
		return err
	case c.JSON:
		err = printJSON(p, test)
	case test.Delivered:
		_, err = fmt.Fprintf(p.out(), "%s has arrived\n", test.EventID)
	}
	switch {
	case err != nil || test.Delivered:
		return err
	case test.LastError == "":
		return errors.New("the event has not been sent: is there a coordinator serve with --webhook-host?")
	}
	return fmt.Errorf("the event has not arrived: %s", test.LastError)
}

func (c *webhookCommand) resume(ctx context.Context, p program, all fleet.Webhooks) error {
	again, err := all.Resume(ctx, c.Cont.ID)
	if err == nil && again > 0 {
		_, err = fmt.Fprintf(p.out(), "%d failed deliveries are sent again\n", again)
	}
	return err
}

func (c *webhookCommand) remove(ctx context.Context, _ program, all fleet.Webhooks) error {
	return all.Remove(ctx, c.Rm.ID)
}
