package webui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/fleet"
)

// schedulesPage is a page of schedules.
type schedulesPage struct {
	Schedules []fleet.Schedule
	LeftOut   int
	Next      string
	Fault     string // about single schedules
}

// schedules lists the schedules, and what begins turns when messages come: those whose last turn or
// call did not end well come first.
func (u *ui) schedules(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	list, leftOut, err := u.Client.Schedules().Page(ctx, r.URL.Query().Get("after"), lanesOnPage)
	p := schedulesPage{Schedules: list, LeftOut: leftOut}
	if err != nil {
		if len(list) == 0 {
			return err
		}
		p.Fault = err.Error()
	}
	if leftOut > 0 && len(list) > 0 {
		p.Next = queried("/schedules", "after", list[len(list)-1].Name)
	}
	slices.SortStableFunc(p.Schedules, func(a, b fleet.Schedule) int {
		return cmp.Compare(scheduleRank(&a), scheduleRank(&b))
	})
	u.show(w, r, http.StatusOK, "schedules", view{Title: "Schedules", Section: "schedules", Data: p})
	return nil
}

// scheduleRank is what comes first of schedules.
func scheduleRank(s *fleet.Schedule) int {
	switch {
	case s.Outcome != "" && stateOf(s.Outcome).Class == "bad":
		return 0
	case s.Paused:
		return 1
	default:
		return 2
	}
}

// scheduleAct changes a schedule.
func (u *ui) scheduleAct(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	all, name := u.Client.Schedules(), r.PostFormValue("name")
	var err error
	switch act := r.PathValue("act"); act {
	case "pause":
		_, err = all.Pause(ctx, name)
	case "resume":
		_, err = all.Resume(ctx, name)
	case "remove":
		err = all.Remove(ctx, name)
	default:
		err = fmt.Errorf("%w: %.100q: must be pause, resume or remove", fleet.ErrInvalid, act)
	}
	if err != nil {
		return err
	}
	u.redirect(w, r, "/schedules")
	return nil
}

// webhooksPage is the page of webhooks.
type webhooksPage struct {
	Webhooks []hooked
}

// hooked is a webhook with what failed of it.
type hooked struct {
	fleet.Webhook

	Failures []fleet.FailedDelivery
}

// maxFailures is how many failed deliveries a page lists of each webhook.
const maxFailures = 20

// webhooks lists the webhooks: those that are paused or fail come first.
func (u *ui) webhooks(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	list, err := u.Client.Webhooks().List(ctx)
	if err != nil {
		return err
	}
	p := webhooksPage{}
	for _, one := range list {
		h := hooked{Webhook: one}
		if one.Failed > 0 {
			if h.Failures, err = u.Client.Webhooks().Failed(ctx, one.ID); err != nil && !errors.Is(err, fleet.ErrNotFound) {
				return err
			}
			h.Failures = h.Failures[:min(len(h.Failures), maxFailures)]
		}
		p.Webhooks = append(p.Webhooks, h)
	}
	slices.SortStableFunc(p.Webhooks, func(a, b hooked) int { return cmp.Compare(webhookRank(&a), webhookRank(&b)) })
	u.show(w, r, http.StatusOK, "webhooks", view{Title: "Webhooks", Section: "webhooks", Data: p})
	return nil
}

// webhookRank is what comes first of webhooks.
func webhookRank(h *hooked) int {
	switch {
	case h.Paused != "":
		return 0
	case h.Failed > 0:
		return 1
	case h.Waiting > 0:
		return 2
	default:
		return 3
	}
}

// webhookAct changes a webhook, or sends it an event.
func (u *ui) webhookAct(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	if err := u.actOnWebhook(ctx, r.PathValue("act"), r.PostFormValue("id")); err != nil {
		return err
	}
	u.redirect(w, r, "/webhooks")
	return nil
}

func (u *ui) actOnWebhook(ctx context.Context, act, id string) error {
	all := u.Client.Webhooks()
	switch act {
	case "test":
		_, err := all.Test(ctx, id, time.Second)
		return err
	case "resume":
		_, err := all.Resume(ctx, id)
		return err
	case "remove":
		return all.Remove(ctx, id)
	default:
		return fmt.Errorf("%w: %.100q: must be test, resume or remove", fleet.ErrInvalid, act)
	}
}
