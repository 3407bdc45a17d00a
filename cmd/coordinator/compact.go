package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// providerFlags are about the providers of models.
type providerFlags struct {
	costFlags
	downFlags
}

// costFlags are about what models cost and how much they take.
type costFlags struct {
	Prices       string `placeholder:"FILE" help:"JSON file with prices and windows of models, which replaces that of this version (docs/cli.md, Budgets)."`
	CompactAt    string `default:"80%" placeholder:"N" help:"When a summary replaces older replies (docs/cli.md, Compaction): at a share of the model's window (--prices), such as 80%, or at a number of tokens, such as 150000. none means never."`
	CompactModel string `placeholder:"M" help:"Model that writes the summaries. Default: that of the session."`
}

// downFlags are about providers that are down.
type downFlags struct {
	FallbackModel string        `placeholder:"M" help:"Model that replies while the provider of the model is down: when all attempts have failed, and for a minute after that."`
	ModelWait     time.Duration `default:"0s" help:"How long a turn waits for a provider that is down; 0s means six attempts, in about 15 s."`
}

// withFallback is a model with the other one of the flags.
func (f *downFlags) withFallback(opener model.Opener, k known, name string, m loop.Model) (loop.Model, error) {
	if f.ModelWait < 0 {
		return nil, cli.Usagef("--model-wait %s: must not be negative", f.ModelWait)
	}
	if f.FallbackModel == "" {
		return m, nil
	}
	other, otherName, err := opener.Open(f.FallbackModel)
	if err != nil {
		return nil, cli.Usagef("--fallback-model: %v", err)
	}
	price, _ := k.prices.Of(otherName)
	return model.WithFallback(m, name, other, loop.Fallback{Model: otherName, Price: price}), nil
}

// known is what the flags say about models.
type known struct {
	prices *model.Prices
	writer loop.Compaction // without At
	share  float64         // of a window, at which a conversation is compacted; 0 is none
	tokens int64           // at which it is; 0 is none
	never  bool
}

// openCosts checks the flags, and opens the model of summaries.
func (f *costFlags) openCosts(opener model.Opener) (k known, err error) {
	if k.prices, err = model.LoadPrices(f.Prices); err != nil {
		return k, cli.Usagef("--prices %s: %v", f.Prices, err)
	}
	percent, isShare := strings.CutSuffix(f.CompactAt, "%")
	switch n, err := strconv.ParseInt(percent, 10, 64); {
	case f.CompactAt == "none":
		k.never = true
	case err != nil || n < 1 || isShare && n > 100:
		return k, cli.Usagef("--compact-at %s: must be 1%% to 100%%, a number of tokens, or none", f.CompactAt)
	case isShare:
		k.share = float64(n) / 100
	default:
		k.tokens = n
	}
	if f.CompactModel == "" {
		return k, nil
	}
	if k.writer.Model, k.writer.ModelName, err = opener.Open(f.CompactModel); err != nil {
		return k, cli.Usagef("--compact-model: %v", err)
	}
	k.writer.Price, _ = k.prices.Of(k.writer.ModelName)
	return k, nil
}

// about is what is known of a model: its price, nil when that is unknown, and when its
// conversations are compacted, nil for never.
func (k known) about(name string) (*loop.Price, *loop.Compaction) {
	price, window := k.prices.Of(name)
	if k.never {
		return price, nil
	}
	compaction := k.writer
	compaction.At = max(k.tokens, int64(k.share*float64(window)))
	return price, &compaction
}

type sessionCompact struct {
	ID     string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	Prices string `placeholder:"FILE" help:"As for run: JSON file with prices of models. Without --nats only."`
	Model  string `placeholder:"M" help:"Model that writes the summary. Default: that of the session; with --nats the coordinator's."`
}

// compact replaces older replies of a session by a summary.
func (c *sessionCommand) compact(ctx context.Context, p program, all *opened) error {
	done, err := c.compacted(ctx, p, all)
	if err != nil {
		return err
	}
	what := "there are no older replies that a summary could replace"
	if done {
		what = "a summary replaces its older replies"
	}
	return c.print(p, struct {
		Compacted bool `json:"compacted"`
	}{done}, "session %s: %s\n", all.id, what)
}

func (c *sessionCommand) compacted(ctx context.Context, p program, all *opened) (bool, error) {
	if c.Nats != "" {
		if c.Compact.Prices != "" {
			return false, cli.Usagef("--prices %s: works only without --nats; in a fleet the coordinator uses its own --prices", c.Compact.Prices)
		}
		return all.Compact(ctx, all.id, c.Compact.Model)
	}
	prices, err := model.LoadPrices(c.Compact.Prices)
	if err != nil {
		return false, cli.Usagef("--prices %s: %v", c.Compact.Prices, err)
	}
	if err := all.hold(ctx, all.id); err != nil {
		return false, err
	}
	name := c.Compact.Model
	if name == "" {
		info, err := all.Show(ctx, all.id)
		if err != nil {
			return false, err
		}
		name = info.Model
	}
	writer, name, err := model.Opener{Env: p.Getenv, Logger: p.logger()}.Open(name)
	if err != nil {
		return false, cli.Usagef("--model: %v", err)
	}
	none, err := tools.NewTable()
	if err != nil {
		return false, err
	}
	price, _ := prices.Of(name)
	runner, err := all.client.Runner(writer, none, &loop.Options{ModelName: name, Price: price, Logger: p.logger()})
	if err != nil {
		return false, err
	}
	done, err := runner.Compact(ctx, all.id, "")
	if err != nil {
		return false, fmt.Errorf("session %s: %w", all.id, err)
	}
	return done, nil
}
