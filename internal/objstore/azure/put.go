package azure

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/leveemq/levee/internal/objstore"
)

const crcName = "leveecrc32c" // metadata: the checksum of the whole object, eight hex digits

// PutIfAbsent implements objstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	if err := objstore.CheckPut(key, src); err != nil {
		return objstore.Info{}, err
	}
	anything := azcore.ETagAny
	return s.put(ctx, objstore.OpPutIfAbsent, key, src, &blob.ModifiedAccessConditions{IfNoneMatch: &anything})
}

// PutIfMatch implements objstore.Store. The service calls a tag that is none an invalid request; so it is looked at here.
func (s *Store) PutIfMatch(ctx context.Context, key string, version objstore.Version, src objstore.Source) (objstore.Info, error) {
	tag := azcore.ETag(version)
	bare := objstore.Version(unquote(string(version)))
	if err := objstore.CheckMatch(key, bare, src); err != nil {
		return objstore.Info{}, err
	}
	return s.put(ctx, objstore.OpPutIfMatch, key, src, &blob.ModifiedAccessConditions{IfMatch: &tag})
}

// unquote takes the quotes off an entity tag, which are part of it.
func unquote(tag string) string {
	if len(tag) >= 2 && tag[0] == '"' && tag[len(tag)-1] == '"' {
		return tag[1 : len(tag)-1]
	}
	return tag
}

func (s *Store) put(ctx context.Context, op objstore.Op, key string, src objstore.Source, condition *blob.ModifiedAccessConditions) (objstore.Info, error) {
	if ctx.Err() != nil {
		return objstore.Info{}, objstore.Ended(ctx, op, key)
	}
	sum := fmt.Sprintf("%08x", src.CRC32C())
	meta := map[string]*string{crcName: &sum}
	access := &blob.AccessConditions{ModifiedAccessConditions: condition}
	var tag *azcore.ETag
	var err error
	if src.Size() <= s.block {
		tag, err = s.putWhole(ctx, op, key, src, meta, access)
	} else {
		tag, err = s.putBlocks(ctx, op, key, src, meta, access)
	}
	if err != nil {
		return objstore.Info{}, err
	}
	size, now := src.Size(), time.Now()
	info, err := infoOf(key, &size, tag, &now, meta)
	if err != nil {
		return objstore.Info{}, failure(op, key, true, err)
	}
	return info, nil
}

func (s *Store) putWhole(ctx context.Context, op objstore.Op, key string, src objstore.Source, meta map[string]*string, access *blob.AccessConditions) (*azcore.ETag, error) {
	up := src.Open(ctx)
	res, err := s.client.NewBlockBlobClient(key).Upload(ctx, up, &blockblob.UploadOptions{Metadata: meta, AccessConditions: access})
	sent, broken := up.Stop()
	switch {
	case broken != nil:
		return nil, fmt.Errorf("%s %s: %w", op, key, broken)
	case err != nil:
		return nil, failure(op, key, sent, err)
	}
	return res.ETag, nil
}

// putBlocks stages blocks and then makes a blob of them. Nobody sees blocks that are only staged; the service drops them
// after a week.
func (s *Store) putBlocks(ctx context.Context, op objstore.Op, key string, src objstore.Source, meta map[string]*string, access *blob.AccessConditions) (*azcore.ETag, error) {
	if op == objstore.OpPutIfAbsent { // not to send all of it for nothing
		if _, err := s.Head(ctx, key); err == nil {
			return nil, fmt.Errorf("%s %s: %w", op, key, objstore.ErrExists)
		}
	}
	size := s.block
	for src.Size() > size*maxBlocks {
		size *= 2
	}
	upload := rand.Text() // blocks of all who write this key lie together
	client := s.client.NewBlockBlobClient(key)
	check := blob.TransferValidationTypeComputeCRC64()
	err := objstore.SendPieces(ctx, src, size, parallel, func(ctx context.Context, n int, up *objstore.Upload) error {
		_, err := client.StageBlock(ctx, blockID(upload, n), up, &blockblob.StageBlockOptions{TransactionalValidation: check})
		if err != nil {
			return failure(op, key, false, err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", op, key, err)
	}
	if ctx.Err() != nil {
		return nil, objstore.Ended(ctx, op, key)
	}
	ids := make([]string, (src.Size()+size-1)/size)
	for i := range ids {
		ids[i] = blockID(upload, i)
	}
	res, err := client.CommitBlockList(ctx, ids, &blockblob.CommitBlockListOptions{Metadata: meta, AccessConditions: access})
	if err != nil {
		err = failure(op, key, true, err)
		if errors.Is(err, objstore.ErrUnavailable) && op == objstore.OpPutIfAbsent {
			err = s.overtaken(ctx, key, err)
		}
		return nil, err
	}
	return res.ETag, nil
}

// overtaken tells whether the blocks are gone because another writer's blob is there: the service looks at the blocks
// before it looks at the condition.
func (s *Store) overtaken(ctx context.Context, key string, err error) error {
	if _, herr := s.Head(ctx, key); herr == nil {
		return fmt.Errorf("put %s: %w", key, objstore.ErrExists)
	}
	return err
}

// blockID names a block; all of a blob have names of one length.
func blockID(upload string, n int) string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s-%06d", upload, n))
}
