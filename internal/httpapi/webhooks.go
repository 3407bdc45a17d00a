package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// WebhookPath names a webhook.
type WebhookPath struct {
	ID string `path:"webhook" maxLength:"64" pattern:"^[a-z0-9]+$" doc:"Id of the webhook."`
}

// WebhookRequest is a webhook that is added.
type WebhookRequest struct {
	URL     string             `json:"url" minLength:"1" maxLength:"2000" example:"https://hooks.example.com/toolfleet" doc:"Where events are sent: https, or http to a loopback address. A coordinator must list its host (--webhook-host)."`
	Events  []string           `json:"events,omitempty" maxItems:"8" enum:"turn.ended,call.ended,approval.waiting,question.waiting" doc:"Events that it gets. Default: all."`
	Session protocol.SessionID `json:"session_id,omitempty" maxLength:"64" doc:"Only session whose events it gets. Default: all of the tenant."`
	Tenant  protocol.Tenant    `json:"tenant,omitempty" maxLength:"64" doc:"Tenant whose events it gets; * means all, for the fleet's operator. Default: that of the token."`
}

// Answers about webhooks.
type (
	// WebhookList lists webhooks.
	WebhookList struct {
		Webhooks []fleet.Webhook `json:"webhooks"`
	}
	// AddedWebhook is a webhook with its secret.
	AddedWebhook struct {
		fleet.Webhook

		Secret string `json:"secret" doc:"Secret that signs what is sent. It is never shown again."`
	}
	// FailedList lists deliveries that are not tried again.
	FailedList struct {
		Failed []fleet.FailedDelivery `json:"failed"`
	}
	// ResumedWebhook says how many failed deliveries are sent again.
	ResumedWebhook struct {
		Again int `json:"again"`
	}
)

// webhooks registers operations on webhooks.
func (a *api) webhooks() {
	const tag = "Webhooks"
	huma.Register(a.huma, operation(http.MethodGet, "/webhooks", "list-webhooks", tag, "List the webhooks, and what became of their deliveries", bounded),
		func(ctx context.Context, _ *struct{}) (*answer[WebhookList], error) {
			list, err := a.Client.Webhooks().List(ctx)
			return answered(WebhookList{orEmpty(list)}, err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/webhooks", "add-webhook", tag, "Add a webhook", created, bounded),
		func(ctx context.Context, in *struct{ Body WebhookRequest }) (*answer[AddedWebhook], error) {
			added, secret, err := a.Client.Webhooks().Add(ctx, fleet.Webhook{URL: in.Body.URL, Events: in.Body.Events, SessionID: in.Body.Session, Tenant: in.Body.Tenant})
			return answered(AddedWebhook{added, secret}, err)
		})
	huma.Register(a.huma, operation(http.MethodDelete, "/webhooks/{webhook}", "remove-webhook", tag, "Remove a webhook with the deliveries that wait", bounded),
		func(ctx context.Context, in *WebhookPath) (*struct{}, error) {
			return done(a.Client.Webhooks().Remove(ctx, in.ID))
		})
	huma.Register(a.huma, operation(http.MethodGet, "/webhooks/{webhook}/failed", "list-failed-events", tag, "List the deliveries that are not tried again", bounded),
		func(ctx context.Context, in *WebhookPath) (*answer[FailedList], error) {
			list, err := a.Client.Webhooks().Failed(ctx, in.ID)
			return answered(FailedList{orEmpty(list)}, err)
		})
	huma.Register(a.huma,
		operation(http.MethodPost, "/webhooks/{webhook}/resume", "resume-webhook", tag, "Continue a paused webhook, and send its failed deliveries again", bounded),
		func(ctx context.Context, in *WebhookPath) (*answer[ResumedWebhook], error) {
			again, err := a.Client.Webhooks().Resume(ctx, in.ID)
			return answered(ResumedWebhook{again}, err)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/webhooks/{webhook}/test", "test-webhook", tag, "Send an event webhook.test", accepted),
		func(ctx context.Context, in *struct {
			WebhookPath
			Waiting
		},
		) (*answer[fleet.WebhookTest], error) {
			return answered(a.Client.Webhooks().Test(ctx, in.ID, milliseconds(in.Wait)))
		})
}
