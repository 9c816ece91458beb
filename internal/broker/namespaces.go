package broker

import (
	"context"

	"github.com/leveemq/levee/internal/meta"
)

// CreateNamespace makes a namespace. It fails with kind already_exists where there is one.
func (b *Broker) CreateNamespace(ctx context.Context, name string) error {
	_, err := b.propose(ctx, meta.CreateNamespace{Name: name, TimeMs: b.cfg.Now().UnixMilli()})
	return onTopic("create namespace", name, err)
}

// DeleteNamespace removes a namespace. It fails with kind conflict while it has topics.
func (b *Broker) DeleteNamespace(ctx context.Context, name string) error {
	_, err := b.propose(ctx, meta.DeleteNamespace{Name: name})
	return onTopic("delete namespace", name, err)
}

// Namespaces returns every namespace, by name.
func (b *Broker) Namespaces() []NamespaceInfo {
	var list []NamespaceInfo
	for n := range b.cfg.Meta.View().Namespaces() {
		list = append(list, NamespaceInfo{Name: n.Name, Topics: n.Topics})
	}
	return list
}

// propose changes the metadata, unless the broker is stopping.
func (b *Broker) propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if b.draining.Err() != nil {
		return meta.Result{}, errDraining()
	}
	return b.cfg.Meta.Propose(ctx, c)
}
