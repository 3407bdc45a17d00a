package fleet

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/access/stored"
	"github.com/toolfleet/toolfleet/internal/natsio"
)

// Token lets a client in at each server of the fleet that serves HTTP, or the Model Context
// Protocol over HTTP. Role is read, run or operate; an empty Tenant is the tenant default. ID and
// Created are set when the token is made, and so is Expires if it is zero: 90 days later. More than
// 366 days are not allowed.
type Token = stored.Token

// Tokens are the tokens of a fleet. Only digests of their secrets are stored.
type Tokens struct{ client *Client }

// Tokens returns the tokens of the fleet.
func (c *Client) Tokens() Tokens { return Tokens{c} }

// List returns the tokens, the oldest first, those that have expired lately, too.
func (t Tokens) List(ctx context.Context) ([]Token, error) {
	return do(ctx, t.client, []natsio.Rights{natsio.TokenListRights(t.client.inner.Name)}, t.client.inner.Tokens().List)
}

// Add makes a token with the name, the role, the tenant and the time of another one, and returns it
// with its secret, which is stored nowhere. Tokens with the same name, role and tenant are one
// client.
func (t Tokens) Add(ctx context.Context, token Token) (made Token, secret string, err error) {
	err = act(ctx, t.client, []natsio.Rights{natsio.TokenRights(t.client.inner.Name)}, func(ctx context.Context) (err error) {
		made, secret, err = t.client.inner.Tokens().Add(ctx, token)
		return err
	})
	return made, secret, err
}

// Remove removes tokens by their ids: requests and streams that they have opened end within a
// second. The error wraps [ErrNotFound] if one of them is not there; then none is removed.
func (t Tokens) Remove(ctx context.Context, ids ...string) error {
	return act(ctx, t.client, []natsio.Rights{natsio.TokenRights(t.client.inner.Name)},
		func(ctx context.Context) error { return t.client.inner.Tokens().Remove(ctx, ids...) })
}
