package calls

import (
	"context"
	"sync"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/calls/ports"
)

var _ ports.Channels = (*Dispatcher)(nil)

// channels is the store of messages, which is opened when a session first uses it.
type channels struct {
	mu    sync.Mutex
	store *channel.Store
}

func (d *Dispatcher) channelStore(ctx context.Context) (_ *channel.Store, err error) {
	d.channels.mu.Lock()
	defer d.channels.mu.Unlock()
	if d.channels.store == nil {
		d.channels.store, err = channel.Open(ctx, d.js, d.fleet)
	}
	return d.channels.store, err
}

// SendMessage implements [ports.Channels].
func (d *Dispatcher) SendMessage(ctx context.Context, name string, message ports.ChannelMessage) error {
	store, err := d.channelStore(ctx)
	if err != nil {
		return err
	}
	return store.Send(ctx, name, message)
}

// ReadMessages implements [ports.Channels].
func (d *Dispatcher) ReadMessages(ctx context.Context, name string, read ports.ChannelRead) ([]ports.ChannelMessage, error) {
	store, err := d.channelStore(ctx)
	if err != nil {
		return nil, err
	}
	return store.Read(ctx, name, read)
}
