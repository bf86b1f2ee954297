//! The words of schedules and ticks, for the OpenAPI document.

use utoipa::ToSchema;

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident),+ })+) => {$(
        $(#[$doc])*
        #[derive(ToSchema)]
        #[schema(rename_all = "snake_case")]
        #[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
        pub(crate) enum $name { $($variant),+ }
    )+};
}

words! {
    /// The rule for the change to and from daylight saving time.
    DstWord { Once, Skip, Both }
    /// The rule for missed ticks.
    MisfireWord { Skip, One, All }
    /// The overlap policy.
    OverlapWord { Allow, Skip, Replace }
    /// The owner of a schedule: the clients of the API, or a configuration file.
    OriginWord { Api, Config }
    /// The outcome of a tick.
    OutcomeWord { Fired, Skipped }
    /// The reason why a tick was skipped. `missed`: no runner processed it in time. `paused`: the schedule was paused.
    /// `overlap`: the previous job had not ended. `invalid`: the kind does not accept the payload any more. `changed`:
    /// the schedule was changed before a runner processed the tick.
    CauseWord { Missed, Paused, Overlap, Invalid, Changed }
}
