//! Whether what [`Table::waits_for`] tells is true: every step of a chain is there, and leads to the next.

use std::collections::BTreeSet;

use tenure_table::{Behind, CycleMember, GrantId, Link, OwnerId, ResourceView, SessionId, Table, WaiterView};

pub(crate) fn look(table: &Table, resources: &[ResourceView]) -> Result<(), String> {
    for resource in resources {
        for waiter in line(resource) {
            let links = table.waits_for(waiter.grant);
            look_at(&links, waiter.grant, resources).map_err(|why| format!("{why}, in {links:?}"))?;
        }
        for held in &resource.holders {
            if resource.converters.iter().all(|waiter| waiter.grant != held.grant)
                && !table.waits_for(held.grant).is_empty()
            {
                return Err(format!("{held:?} waits for something"));
            }
        }
    }
    Ok(())
}

fn look_at(links: &[Link], grant: GrantId, resources: &[ResourceView]) -> Result<(), String> {
    if links.first().is_none_or(|link| link.waiter.grant != grant) {
        return Err(format!("the chain of {grant} begins elsewhere"));
    }
    let mut seen = BTreeSet::new();
    for (i, link) in links.iter().enumerate() {
        let (resource, place) = find(&link.waiter, resources)?;
        let waiter = line(resource).nth(place).unwrap();
        if !seen.insert((waiter.session, waiter.number, &link.waiter.name)) {
            return Err("somebody is there twice".to_owned());
        }
        let next = links.get(i + 1).map(|next| &next.waiter);
        let leads_on = match &link.behind {
            Behind::Holder(held) => {
                let conflicts = held.owner != waiter.owner && !held.mode.compatible_with(waiter.mode);
                if !resource.holders.contains(held) || !conflicts {
                    return Err(format!("{held:?} is not in the way of {waiter:?}"));
                }
                next.map_or(!waits(held.owner, resources), |next| next.owner == held.owner)
            }
            Behind::Ahead(ahead) => {
                let (there, before) = find(ahead, resources)?;
                if there.name != resource.name || before >= place {
                    return Err(format!("{ahead:?} is not ahead of {waiter:?}"));
                }
                next.is_some_and(|next| next.owner == ahead.owner)
            }
            Behind::Delay(delay) => {
                if !resource.delays.contains(delay) || delay.mode.compatible_with(waiter.mode) {
                    return Err(format!("{delay:?} is not in the way of {waiter:?}"));
                }
                next.is_none()
            }
            Behind::Itself => {
                let Some(next) = next else {
                    return Err("the chain ends where nobody stands in the way".to_owned());
                };
                let (there, at) = find(next, resources)?;
                let other = line(there).nth(at).unwrap();
                let tied = line(resource).take(place).any(|ahead| ahead.owner == waiter.owner);
                if place > 0 && !tied {
                    return Err(format!("there is somebody ahead of {waiter:?}"));
                }
                let further_ahead = there.name == resource.name && other.owner == waiter.owner && at < place;
                request(other) == request(waiter) || further_ahead
            }
        };
        if !leads_on {
            return Err(format!("{:?} does not lead on to {next:?}", link.behind));
        }
    }
    Ok(())
}

/// Where somebody waits, if all that is said of it is true.
fn find<'a>(
    member: &CycleMember,
    resources: &'a [ResourceView],
) -> Result<(&'a ResourceView, usize), String> {
    let nowhere = || format!("{member:?} is not there");
    let resource = resources.iter().find(|resource| resource.name == member.name).ok_or_else(nowhere)?;
    let place = line(resource).position(|waiter| waiter.grant == member.grant).ok_or_else(nowhere)?;
    let waiter = line(resource).nth(place).unwrap();
    let described =
        waiter.owner == member.owner && waiter.mode == member.mode && waiter.label == member.label;
    if described && u32::try_from(place) == Ok(member.place) { Ok((resource, place)) } else { Err(nowhere()) }
}

fn waits(owner: OwnerId, resources: &[ResourceView]) -> bool {
    resources.iter().flat_map(line).any(|waiter| waiter.owner == owner)
}

fn request(waiter: &WaiterView) -> (SessionId, u64) {
    (waiter.session, waiter.number)
}

fn line(resource: &ResourceView) -> impl Iterator<Item = &WaiterView> {
    resource.converters.iter().chain(&resource.waiters)
}
