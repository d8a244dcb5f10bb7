// A controller-runtime manager with the watches of `Buoys` in core/tests/controller/chaos_world.py.
//
// It prints each reconcile as a JSON line: the buoy, and the versions of the objects that concern it.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	namespace = "sea"
	label     = "buoy"
)

var (
	buoys      = schema.GroupVersionKind{Group: "chaos.test", Version: "v1", Kind: "Buoy"}
	configMaps = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	secrets    = schema.GroupVersionKind{Version: "v1", Kind: "Secret"}
	services   = schema.GroupVersionKind{Version: "v1", Kind: "Service"}
)

// version is a list like the tuple of the judge: the UID, the version and the name of an object.
type version [3]any

// report is one reconcile. An object that does not exist has no versions.
type report struct {
	Name string    `json:"name"`
	View []version `json:"view"`
}

type reconciler struct {
	client client.Client
	lock   sync.Mutex
	out    *json.Encoder
}

func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	buoy := object(buoys)
	err := r.client.Get(ctx, request.NamespacedName, buoy)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, r.print(report{Name: request.Name, View: []version{}})
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	dependents, err := r.dependents(ctx, request.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.print(report{request.Name, append([]version{versionOf(buoy)}, dependents...)})
}

// dependents are the objects in the cache that concern a buoy, sorted.
func (r *reconciler) dependents(ctx context.Context, name string) ([]version, error) {
	var found []version
	for _, kind := range []schema.GroupVersionKind{configMaps, secrets} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := r.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, err
		}
		for _, item := range list.Items {
			if concerns(&item, name) {
				found = append(found, versionOf(&item))
			}
		}
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(services)
	if err := r.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	for _, item := range list.Items {
		if concerns(&item, name) {
			found = append(found, versionOf(&item))
		}
	}
	slices.SortFunc(found, func(a, b version) int { return cmp.Compare(a[0].(string), b[0].(string)) })
	return found, nil
}

func (r *reconciler) print(report report) error {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.out.Encode(report)
}

func versionOf(obj client.Object) version {
	number, err := strconv.Atoi(obj.GetResourceVersion())
	must(err)
	return version{string(obj.GetUID()), number, obj.GetName()}
}

func concerns(obj client.Object, name string) bool {
	for _, owner := range obj.GetOwnerReferences() {
		if owner.Name == name {
			return true
		}
	}
	return obj.GetLabels()[label] == name
}

func byLabel(_ context.Context, obj client.Object) []reconcile.Request {
	name := obj.GetLabels()[label]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}

// byRequest maps after a request. A mapper cannot return an error, so this one maps also after a failure.
func byRequest(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, obj client.Object) []reconcile.Request {
		_ = reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "any"}, object(configMaps))
		return byLabel(ctx, obj)
	}
}

func object(kind schema.GroupVersionKind) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(kind)
	return obj
}

// mapper knows the kinds, so the manager needs no discovery.
func mapper(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []schema.GroupVersionKind{configMaps, secrets, services} {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	version := buoys.GroupVersion()
	mapper.AddSpecific(buoys, version.WithResource("buoys"), version.WithResource("buoy"), meta.RESTScopeNamespace)
	return mapper, nil
}

// newCache names the requests of watches, so that the API server fails them more often than others.
func newCache(config *rest.Config, options cache.Options) (cache.Cache, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "watches"
	return cache.New(config, options)
}

func main() {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	kept, err := labels.Parse("kept")
	must(err)
	// QPS is that of controller-runtime's own configuration: no limit.
	config := &rest.Config{Host: os.Args[1], QPS: -1, UserAgent: "reconciles"}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		MapperProvider: mapper,
		NewCache:       newCache,
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Client:         client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{namespace: {}},
			ByObject:          map[client.Object]cache.ByObject{object(buoys): {Label: kept}},
		},
	})
	must(err)
	service := &metav1.PartialObjectMetadata{}
	service.SetGroupVersionKind(services)
	must(ctrl.NewControllerManagedBy(manager).
		Named("buoys").
		For(object(buoys)).
		Owns(object(configMaps), builder.MatchEveryOwner).
		Watches(object(secrets), handler.EnqueueRequestsFromMapFunc(byLabel)).
		WatchesMetadata(service, handler.EnqueueRequestsFromMapFunc(byRequest(manager.GetAPIReader()))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(&reconciler{client: manager.GetClient(), out: json.NewEncoder(os.Stdout)}))
	must(manager.Start(ctrl.SetupSignalHandler()))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
