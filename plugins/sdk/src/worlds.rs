//! One macro a world: from a type that implements the trait to the component's exports.

/// What the four macros share: the configured policy, made once by `configure`.
#[doc(hidden)]
#[macro_export]
macro_rules! __lifecycle {
    ($policy:ty, $world:ident, $question:path) => {
        static POLICY: ::std::sync::OnceLock<$policy> = ::std::sync::OnceLock::new();

        fn policy() -> &'static $policy {
            // The host's contract is to configure first; without a policy there is nothing to answer with.
            POLICY
                .get()
                .expect("configure is called before any question")
        }

        struct Component;

        impl $crate::bindings::$world::exports::portolan::policy::lifecycle::Guest for Component {
            fn configure(
                config: ::std::string::String,
                names: $crate::bindings::$world::exports::portolan::policy::lifecycle::NameTables,
            ) -> ::std::result::Result<(), ::std::string::String> {
                let names = $crate::__name_tables!(names);
                let made = <$policy as $question>::configure(&config, &names);
                let made = made.map_err(|error| ::std::string::ToString::to_string(&error))?;
                POLICY
                    .set(made)
                    .map_err(|_| ::std::string::String::from("this instance is configured already"))
            }
        }
    };
}

/// The generated record as the SDK's; each world has its own copy of the type.
#[doc(hidden)]
#[macro_export]
macro_rules! __name_tables {
    ($names:ident) => {
        $crate::NameTables {
            tenant: $names.tenant,
            sites: $names
                .sites
                .into_iter()
                .map(|site| $crate::SiteEntry {
                    name: site.name,
                    region: site.region,
                    jurisdiction: site.jurisdiction,
                })
                .collect(),
            jurisdictions: $names.jurisdictions,
            models: $names.models,
            user_classes: $names.user_classes,
        }
    };
}

/// Makes a component of the `residency` world from a type that implements [`Residency`](crate::Residency).
#[macro_export]
macro_rules! residency {
    ($policy:ty) => {
        const _: () = {
            $crate::__lifecycle!($policy, residency, $crate::Residency);

            use $crate::bindings::residency::exports::portolan::policy::residency_policy as wit;

            impl wit::Guest for Component {
                fn partition(
                    subject: wit::Subject,
                    request: ::std::vec::Vec<u32>,
                ) -> ::std::vec::Vec<wit::Placement> {
                    let subject = $crate::convert::subject(subject);
                    let placements =
                        $crate::Residency::partition(policy(), &subject, $crate::RequestView(&request));
                    placements
                        .into_iter()
                        .map($crate::convert::placement)
                        .collect()
        }
            }

            $crate::bindings::residency::export!(Component with_types_in $crate::bindings::residency);
        };
    };
}

/// Makes a component of the `cost` world from a type that implements [`Cost`](crate::Cost).
#[macro_export]
macro_rules! cost {
    ($policy:ty) => {
        const _: () = {
            $crate::__lifecycle!($policy, cost, $crate::Cost);

            use $crate::bindings::cost::exports::portolan::policy::cost_policy as wit;

            impl wit::Guest for Component {
                fn estimate(
                    request: ::std::vec::Vec<u32>,
                    stride: u32,
                    routes: ::std::vec::Vec<u32>,
                ) -> ::std::vec::Vec<u32> {
                    let routes = $crate::convert::routes(stride, &routes);
                    $crate::Cost::estimate_all(policy(), $crate::RequestView(&request), routes).cells
                }
            }

    $crate::bindings::cost::export!(Component with_types_in $crate::bindings::cost);
        };
    };
}

/// Makes a component of the `routing` world from a type that implements [`Routing`](crate::Routing).
#[macro_export]
macro_rules! routing {
    ($policy:ty) => {
        const _: () = {
            $crate::__lifecycle!($policy, routing, $crate::Routing);

            use $crate::bindings::routing::exports::portolan::policy::routing_policy as wit;

            impl wit::Guest for Component {
                fn decide(
                    request: ::std::vec::Vec<u32>,
                    stride: u32,
                    routes: ::std::vec::Vec<u32>,
                    cost_stride: u32,
                    costs: ::std::vec::Vec<u32>,
                ) -> wit::Decision {
                    let candidates = $crate::convert::candidates((stride, &routes), (cost_stride, &costs));
                    let request = $crate::RequestView(&request);
                    $crate::convert::decision($crate::Routing::decide(policy(), request, candidates))
                }
            }

    $crate::bindings::routing::export!(Component with_types_in $crate::bindings::routing);
        };
    };
}

/// Makes a component of the `invalidation` world from a type that implements
/// [`Invalidation`](crate::Invalidation).
#[macro_export]
macro_rules! invalidation {
    ($policy:ty) => {
        const _: () = {
            $crate::__lifecycle!($policy, invalidation, $crate::Invalidation);

            use $crate::bindings::invalidation::exports::portolan::policy::invalidation_policy as wit;

            impl wit::Guest for Component {
                fn react(
                    event: wit::Event,
                    stride: u32,
                    groups: ::std::vec::Vec<u32>,
                ) -> ::std::vec::Vec<wit::Directive> {
                    let event = $crate::convert::event(event);
                    let groups = $crate::convert::groups(stride, &groups);
                    let directives = $crate::Invalidation::react(policy(), &event, groups);
                    directives
                        .into_iter()
                        .map($crate::convert::directive)
                        .collect()
                }
            }

            $crate::bindings::invalidation::export!(
                Component with_types_in $crate::bindings::invalidation
            );
        };
    };
}
