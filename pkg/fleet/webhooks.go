package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session/webhook"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Webhook is a receiver of events over HTTP. [Webhooks.Add] takes URL, Events, SessionID and
// Tenant, and sets the other fields.
type Webhook struct {
	ID string `json:"webhook_id"`
	// URL is where events are sent: https, or http to a loopback address.
	URL string `json:"url"`
	// Events are those that it gets: turn.ended, call.ended, approval.waiting and question.waiting;
	// none means all.
	Events []string `json:"events,omitempty"`
	// SessionID is the only session whose events it gets; "" means all sessions of the tenant.
	SessionID protocol.SessionID `json:"session_id,omitempty"`
	// Tenant is the tenant whose events it gets; "" is that of the principal who adds it. "*" means
	// all tenants, for the fleet's operator alone.
	Tenant  protocol.Tenant `json:"tenant,omitempty"`
	Created time.Time       `json:"created"`
	// Paused says why nothing is sent, and no event is noted; "" while it is not paused.
	Paused string `json:"paused,omitempty"`
	// Waiting is how many deliveries were not made yet, or are tried again, and Failed how many are
	// not.
	Waiting int `json:"waiting"`
	Failed  int `json:"failed"`
	// LastError is why the last delivery has failed; "" when one has arrived since.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	// DeliveredAt is when a delivery arrived, to within a minute.
	DeliveredAt time.Time `json:"delivered_at,omitzero"`
}

// FailedDelivery is a delivery that is not tried again. It is listed for three days.
type FailedDelivery struct {
	EventID  string    `json:"event_id"` // the webhook-id of its requests
	Type     string    `json:"type"`
	Error    string    `json:"error"`
	Attempts int       `json:"attempts"`
	At       time.Time `json:"at"`
}

// Webhooks are the webhooks of a fleet: coordinators that may reach the receiver (--webhook-host)
// send each event at least once.
type Webhooks struct{ client *Client }

// Webhooks returns the webhooks of the fleet.
func (c *Client) Webhooks() Webhooks { return Webhooks{c} }

// act opens the webhooks, and makes them if they are missing.
func (w Webhooks) act(ctx context.Context, method func(context.Context, *webhook.Store) error) error {
	f := w.client.inner
	return act(ctx, w.client, []natsio.Rights{natsio.WebhookRights(f.Name)}, func(ctx context.Context) error {
		store, err := webhook.Open(ctx, f)
		if err == nil {
			err = method(ctx, store)
		}
		return err
	})
}

// List returns the webhooks, the oldest first.
func (w Webhooks) List(ctx context.Context) (list []Webhook, err error) {
	f := w.client.inner
	err = act(ctx, w.client, []natsio.Rights{natsio.WebhookRights(f.Name)}, func(ctx context.Context) error {
		store, err := webhook.OpenExisting(ctx, f)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			return webhook.MaySee(ctx)
		}
		if err != nil {
			return err
		}
		all, err := store.List(ctx)
		for i := range all {
			list = append(list, webhookOf(&all[i]))
		}
		return err
	})
	return list, err
}

func webhookOf(l *webhook.Listed) Webhook {
	made := Webhook{
		ID: l.ID, URL: l.URL, SessionID: l.Session, Tenant: l.Tenant, Created: l.Created, Paused: l.Paused, Waiting: l.Waiting, Failed: l.Failed,
		LastError: l.LastError, LastErrorAt: l.LastErrorAt, DeliveredAt: l.DeliveredAt,
	}
	for _, e := range l.Events {
		made.Events = append(made.Events, string(e))
	}
	return made
}

// Add stores a webhook, which gets what happens from now on, and returns it with the secret that
// signs its events, which is never shown again. The error wraps [ErrInvalid].
func (w Webhooks) Add(ctx context.Context, request Webhook) (added Webhook, secret string, err error) {
	err = w.act(ctx, func(ctx context.Context, store *webhook.Store) error {
		h := webhook.Hook{URL: request.URL, Session: request.SessionID, Tenant: request.Tenant}
		for _, e := range request.Events {
			h.Events = append(h.Events, webhook.EventType(e))
		}
		stored, err := store.Add(ctx, h)
		if err == nil {
			added, secret = webhookOf(&webhook.Listed{Hook: *stored}), stored.Secret
		}
		return err
	})
	return added, secret, err
}

// Remove removes a webhook with the deliveries that wait. The error wraps [ErrNotFound].
func (w Webhooks) Remove(ctx context.Context, id string) error {
	return w.act(ctx, func(ctx context.Context, store *webhook.Store) error { return store.Remove(ctx, id) })
}

// Failed returns the failed deliveries of a webhook, the earliest first. The error wraps
// [ErrNotFound].
func (w Webhooks) Failed(ctx context.Context, id string) (list []FailedDelivery, err error) {
	err = w.act(ctx, func(ctx context.Context, store *webhook.Store) error {
		all, err := store.Failures(ctx, id)
		for _, f := range all {
			list = append(list, FailedDelivery{f.Event, string(f.Type), f.Error, f.Attempts, f.At})
		}
		return err
	})
	return list, err
}

// Resume continues a paused webhook with what happens from now on, and sends its failed deliveries
// again; it returns their number. The error wraps [ErrNotFound].
func (w Webhooks) Resume(ctx context.Context, id string) (again int, err error) {
	err = w.act(ctx, func(ctx context.Context, store *webhook.Store) error {
		again, err = store.Resume(ctx, id)
		return err
	})
	return again, err
}

// WebhookTest is what became of the event of [Webhooks.Test].
type WebhookTest struct {
	EventID   string `json:"event_id"`
	Delivered bool   `json:"delivered"`
	// LastError is the last error of the webhook, if the event has not arrived.
	LastError string `json:"last_error,omitempty"`
}

// Test sends an event webhook.test to a webhook, and waits for so long until it has arrived. The
// error wraps [ErrNotFound].
func (w Webhooks) Test(ctx context.Context, id string, wait time.Duration) (test WebhookTest, err error) {
	err = w.act(ctx, func(ctx context.Context, store *webhook.Store) error {
		var err error
		if test.EventID, err = store.Test(ctx, id); err != nil {
			return err
		}
		for until := time.Now().Add(wait); ; {
			var waits bool
			if waits, test.LastError, err = store.Pending(ctx, id, test.EventID); err != nil {
				return err
			}
			if test.Delivered = !waits; test.Delivered || time.Now().After(until) || !pause.For(ctx, testPeriod) {
				return nil
			}
		}
	})
	return test, err
}

// testPeriod is how often [Webhooks.Test] looks.
const testPeriod = 100 * time.Millisecond
