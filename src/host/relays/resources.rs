//! Requests of clients about files (`resource*`): reading and changing them.
//!
//! Owns: parsing these requests, and the folders below which clients may change files.
//! Never: accesses a file; requests go out, and are answered when they are complete.

use ahp_types::commands::{
    ResourceListParams, ResourceReadParams, ResourceResolveParams, ResourceWriteParams,
};

use crate::host::changes::checkpointed;
use crate::host::effects::{Change, Resource};
use crate::host::ledger::{contents, Ledger};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::Params;
use crate::wire::watches::Watched;

/// Parses a request of one of the `resource*` methods. Fails if it is invalid, or names content of
/// a change that does not exist.
pub(crate) fn resource(ledger: &Ledger, method: Method, params: &Params) -> Result<Resource, RpcError> {
    let change = match method {
        Method::CreateResourceWatch => return Ok(Resource::Watch(Watched::asked_for(params.read()?)?)),
        Method::ResourceRead => {
            let params: ResourceReadParams = params.read()?;
            if let Some(content) =
                checkpointed::checkpointed_content(ledger, &params.uri, Some(params.encoding))?
            {
                return Ok(content);
            }
            let uri = contents::resolve_content(ledger, &params.uri)?.unwrap_or(params.uri);
            return Ok(Resource::Read { uri, encoding: params.encoding });
        }
        Method::ResourceResolve => {
            let params: ResourceResolveParams = params.read()?;
            if let Some(content) = checkpointed::checkpointed_content(ledger, &params.uri, None)? {
                return Ok(content);
            }
            let content = contents::resolve_content(ledger, &params.uri)?;
            let follows_links = params.follow_symlinks != Some(false);
            return Ok(Resource::Resolve { uri: params.uri, content, follows_links });
        }
        Method::ResourceWrite => Change::Write(writing(params.read()?)?),
        Method::ResourceMkdir => Change::Mkdir(params.read()?),
        Method::ResourceMove => Change::Move(params.read()?),
        Method::ResourceCopy => Change::Copy(params.read()?),
        Method::ResourceDelete => Change::Delete(params.read()?),
        Method::ResourceRequest => Change::Ask(params.read()?),
        _ => {
            let params: ResourceListParams = params.read()?;
            return Ok(Resource::List { uri: params.uri });
        }
    };
    Ok(Resource::Change { change: Box::new(change), below: ledger.channels.folders_of_sessions() })
}

fn writing(params: ResourceWriteParams) -> Result<ResourceWriteParams, RpcError> {
    if params.create_only == Some(true) && params.if_match.is_some() {
        return Err(RpcError::invalid_params(
            "`ifMatch` says that the file is there, and `createOnly` that it is not",
        ));
    }
    if params.position.is_some_and(|position| position < 0) {
        return Err(RpcError::invalid_params("`position` is below 0"));
    }
    Ok(params)
}
