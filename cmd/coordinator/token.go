package main

import (
	"context"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/access/stored"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// tokenCommand makes the tokens of clients over HTTP.
type tokenCommand struct {
	environment.ExistingFleet

	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"1m" help:"Time limit of the command."`

	Add struct {
		Name    string        `arg:"" help:"Name of the client. Tokens with one name, role and tenant are one client."`
		Role    string        `default:"run" enum:"read,run,operate" help:"What the client may do in its tenant: read (see), run (make and use, and change what it made) or operate (also approve, and change what others made)."`
		Tenant  string        `default:"default" help:"Tenant of the client: it reaches no other one."`
		Expires time.Duration `default:"2160h" help:"Time for which the token is good; at most 8784h."`
	} `cmd:"" help:"Make a token, and print it. Only its digest is stored: it is shown once."`
	Ls struct{} `cmd:"" help:"List tokens, without their secrets."`
	Rm struct {
		ID []string `arg:"" help:"Ids of the tokens, as in the list."`
	} `cmd:"" help:"Remove tokens: their requests and streams end within a second, at each server of the fleet."`
}

// verbs implements [group].
func (c *tokenCommand) verbs() map[string]command {
	verb := func(check func() error, act func(context.Context, program, fleet.Tokens) error) command {
		return fleetVerb{&c.ExistingFleet, c.Timeout, check, func(ctx context.Context, p program, client *fleet.Client) error {
			return act(ctx, p, client.Tokens())
		}}
	}
	return map[string]command{"add": verb(c.checkAdd, c.add), "ls": verb(nil, c.list), "rm": verb(nil, c.remove)}
}

func (c *tokenCommand) checkAdd() error {
	if c.Add.Expires <= 0 || c.Add.Expires > stored.MaxAge {
		return cli.Usagef("--expires %s: must be more than 0, and at most %s", c.Add.Expires, stored.MaxAge)
	}
	return nil
}

func (c *tokenCommand) add(ctx context.Context, p program, tokens fleet.Tokens) error {
	made, secret, err := tokens.Add(ctx, fleet.Token{
		Name: c.Add.Name, Role: c.Add.Role, Tenant: protocol.Tenant(c.Add.Tenant), Expires: time.Now().Add(c.Add.Expires),
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, struct {
			fleet.Token

			Secret string `json:"token"`
		}{made, secret})
	}
	_, _ = fmt.Fprintf(p.Stderr,
		"coordinator: token %s is not shown again. Clients send it as: curl -H \"Authorization: Bearer TOKEN\" http://HOST:PORT/v1/sessions\n",
		made.ID)
	_, err = fmt.Fprintln(p.Stdout, secret)
	return err
}

func (c *tokenCommand) list(ctx context.Context, p program, tokens fleet.Tokens) error {
	list, err := tokens.List(ctx)
	if err != nil {
		return err
	}
	return printList(p, c.JSON, list, "there are no tokens", "ID\tNAME\tROLE\tTENANT\tCREATED\tEXPIRES", func(t *fleet.Token) []any {
		expires := t.Expires.Local().Format(time.DateTime)
		if !time.Now().Before(t.Expires) {
			expires += " (expired)"
		}
		return []any{t.ID, t.Name, t.Role, t.Tenant, t.Created.Local().Format(time.DateTime), expires}
	})
}

func (c *tokenCommand) remove(ctx context.Context, _ program, tokens fleet.Tokens) error {
	return tokens.Remove(ctx, c.Rm.ID...)
}
